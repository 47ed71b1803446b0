"""`web-sites`: six small web applications that are served to one episode alone, each over a database of its own.

One file an application (`shop`, `forum`, `tracker`, `wiki`, `mail`, `booking`); what they share is beside them:
`frame` (requests and pages), `state` (databases, snapshots), `goals` (tasks and grades), `wire` (the server).
"""
