"""The six sites by name, with their tasks."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym_environments.web.sites.booking_tasks import BOOKING
from envgym_environments.web.sites.forum_tasks import FORUM
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.mail_tasks import MAIL
from envgym_environments.web.sites.shop_tasks import SHOP
from envgym_environments.web.sites.tracker_tasks import TRACKER
from envgym_environments.web.sites.wiki_tasks import WIKI

__all__ = ["SITES"]

SITES: Mapping[str, Site] = MappingProxyType(
    {site.name: site for site in (BOOKING, FORUM, MAIL, SHOP, TRACKER, WIKI)}
)
