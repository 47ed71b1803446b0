"""What leaves a store as a file, and comes in from one: credit, exports, packed rows, imports."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from envgym.cli.data_parts import Json, Out, Source, Where, chosen_of, console, made, say, shares_of, warn_of_short
from envgym.cli.options import key_values
from envgym.episode import Group
from envgym.registry import find, make_scheme
from envgym.store import StoreReader

__all__ = ["credit_command", "export_command", "import_command", "pack_command"]


def credit_command(  # noqa: PLR0913  # one parameter per option
    source: Source,
    out: Annotated[Path, typer.Option(help="The Parquet file to make: one row per episode.")],
    scheme: Annotated[str, typer.Option(help="A scheme's name; envgym list shows them.")] = "dr-grpo",
    option: Annotated[list[str] | None, typer.Option(help="name=value for the scheme, such as gamma=0.9.")] = None,
    grade: Annotated[str, typer.Option(help="GRADER/CHANNEL to credit by, instead of what was earned.")] = "",
    feedback: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Lines of `data feedback`, for a scheme that listens to them (repeatable)."),
    ] = None,
    together: Annotated[int, typer.Option(min=1, help="Groups credited at once, as in a step of training.")] = 64,
    as_json: Json = False,
) -> None:
    """Credit every sampled token anew by a scheme, without grading or playing again."""
    from envgym.data import recredit

    grader, slash, channel = grade.rpartition("/")
    if grade and not (grader and slash and channel):
        raise ValueError(f"--grade {grade!r} is not of the form GRADER/CHANNEL, such as tests/passed")

    options = key_values(option or (), "--option")
    told = _told(scheme, feedback or ())
    if twice := sorted(told.keys() & options.keys()):
        raise ValueError(f"--option {twice[0]} and --feedback both say what {scheme!r} needs; leave one out")
    made = make_scheme(scheme, **options, **told)
    with StoreReader(source) as reader:
        by = (grader, channel) if grade else None
        found = recredit(reader.groups(), made, out, grade=by, together=together)
    for line in _amiss(found, options):
        print(f"envgym: {source}: {line}", file=sys.stderr)
    said = {"episodes": found.episodes, "scheme": scheme, **({"grade": grade} if grade else {}), "out": str(out)}
    say(said, as_json)


def _told(scheme: str, files: Iterable[Path]) -> dict[str, Any]:
    """What a scheme needs of feedback; {} without a file."""
    from envgym.data.listening import listening
    from envgym.data.said import read_said

    said = [line for file in files for line in read_said(file)]
    return listening(find("schemes", scheme).needs, said) if files else {}


def _amiss(found: Any, options: dict[str, Any]) -> Iterator[str]:
    """What makes credit say nothing, so that it is not taken for credit: `found` is a `Recredited`."""
    if not found.episodes:
        yield "it holds no episode that has ended, so nothing was credited"
    elif not found.tokens:
        yield f"none of its {found.episodes} episodes has a sampled token, so there is nothing to credit"
    elif not found.credited:
        yield (
            f"all credit is 0: of {found.episodes} episodes in {found.groups} groups, {found.forks} were forked "
            f"and {found.failed} failed or have no grade; outcomes differ in {found.split} groups"
        )
    named = [options.get("channel"), *(options.get("channels") or ())]
    for name in named if found.tokens else ():
        if name is not None and name not in found.channels:
            known = f"; those it has: {', '.join(sorted(found.channels))}" if found.channels else ", nor any other"
            yield f"no turn has the channel {name!r}{known}"


def export_command(  # noqa: PLR0913  # one parameter per option
    source: Source,
    to: Annotated[
        str, typer.Option(help="The format: atif, chat, datasets, minari, sharegpt, swe-agent, verifiers.")
    ],
    out: Annotated[Path, typer.Option(help="The file or folder to make.")],
    where: Where = None,
    redact: Annotated[bool, typer.Option(help="Replace secrets and paths of this host.")] = True,
    redact_path: Annotated[
        list[str] | None, typer.Option(metavar="PREFIX", help="One more directory of this host to replace.")
    ] = None,
    extra: Annotated[
        bool, typer.Option(help="Let what the format has no field for travel in one it ignores.")
    ] = True,
    name: Annotated[str, typer.Option(help="Of the data set, for its card.")] = "",
    licence: Annotated[str, typer.Option(help="Of the data set, for its card.")] = "",
    split: Annotated[list[str] | None, typer.Option(help="name=share of each split, by task (datasets).")] = None,
    scores: Annotated[
        tuple[float, float] | None, typer.Option(help="Rewards that count as 0 and 1 (datasets).")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="A text file, a text per line: leave out what shares 13 words with one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write episodes in another tool's format; what it cannot hold, and what was redacted, is listed."""
    from envgym.data import decontaminated, family, part_of, reports_of
    from envgym.formats import Card, Options, export, format_named
    from envgym.formats.report import report
    from envgym.redaction import Host, Redactor

    form = format_named(to)
    _check_used(form, {"split": split, "scores": scores, "licence": licence, "name": name})
    shares = shares_of(split or ["train=1"])
    part_of("", shares)
    if redact_path and not redact:
        raise ValueError("--redact-path with --no-redact: nothing would be replaced")
    named = [str(path) for one in (source, out) if len((path := one.absolute()).parts) > 2]
    clean = Redactor(host=Host.here().knowing(*(redact_path or ()), *named)) if redact else False
    with StoreReader(source) as reader:
        names, reports = chosen_of(reader, where), [*reports_of(source)]
        if held_out is not None:
            names, found = decontaminated(reader, names, held_out)
            warn_of_short(found)
            reports.append(found)
        wanted = set(family(reader, names))
        if scores is not None:
            _tell_outside(reader, wanted, scores)
        kept = (tuple(one for one in group if one.id in wanted) for group in reader.groups())
        groups = (Group(episodes[0].task_id, episodes) for episodes in kept if episodes)
        checked = "\n\n".join(map(str, reports))
        card = Card(name=name or source.name, licence=licence, score_range=scores, decontamination=checked)
        options = Options(extra=extra, card=card, split=lambda group: part_of(group.task_id, shares))
        done = export(groups, out, form, options=options, redact=clean)
    if as_json:
        print(json.dumps(done.to_json()))
    else:
        console().print(report(done))


def _tell_outside(reader: StoreReader, names: set[str], scores: tuple[float, float]) -> None:
    """Say on standard error how many rewards are not between those that count as 0 and 1."""
    pairs = zip(reader.ids, reader.table("episodes", ["reward"]).column(0).to_pylist(), strict=True)
    rewards = [reward for name, reward in pairs if name in names and reward is not None]
    if outside := [reward for reward in rewards if not scores[0] <= reward <= scores[1]]:
        print(
            f"envgym: {len(outside)} of {len(rewards)} rewards lie outside --scores {scores[0]:g} {scores[1]:g} "
            f"(they go from {min(rewards):g} to {max(rewards):g}): their scores are below 0 or above 1",
            file=sys.stderr,
        )


def _check_used(form: Any, given: dict[str, Any]) -> None:
    """Raise ValueError for an option that the format has no place for."""
    uses = getattr(form, "uses", given)  # who does not say may use everything
    for name, value in given.items():
        if value and name not in uses:
            raise ValueError(f"--{name} says nothing to the format {form.name!r}, which has no place for it")


def pack_command(  # noqa: PLR0913  # one parameter per option
    source: Source,
    out: Annotated[Path, typer.Option(help="The Parquet file to make.")],
    length: Annotated[int, typer.Option(min=1, help="Places of every row.")],
    where: Where = None,
    train: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Of tokens to learn: sampled (the default), tool, ...")
    ] = None,
    longer: Annotated[str, typer.Option(help="What becomes of a longer context: refuse, drop or cut.")] = "refuse",
    redact: Annotated[bool, typer.Option(help="Leave out tokens that spell secrets or paths of this host.")] = True,
    as_json: Json = False,
) -> None:
    """Pack contexts into rows of one length: ids, roles, mask, segment ids, positions, log-probs."""
    from envgym.data import TokenRow, family, packed, token_rows, write_packed
    from envgym.redaction import Host, Redactor

    named = [str(path) for one in (source, out) if len((path := one.absolute()).parts) > 2]
    clean = Redactor(host=Host.here().knowing(*named)) if redact else None
    with StoreReader(source) as reader:
        wanted = set(family(reader, chosen_of(reader, where)))
        kept = (tuple(one for one in group if one.id in wanted) for group in reader.groups())
        groups: Iterable[Group] = (Group(episodes[0].task_id, episodes) for episodes in kept if episodes)
        groups = groups if clean is None else map(clean.group, groups)
        too_long: list[str] = []

        def contexts() -> Iterator[TokenRow]:
            for group in groups:
                for row in (row for one in group for row in token_rows(group, one, train=train or ("sampled",))):
                    too_long.extend([row.episode] * (len(row.ids) > length))
                    yield row

        rows, packed_in = write_packed(packed(contexts(), length, longer=longer), out)  # type: ignore[arg-type]
    gone = {field: times for field, times, _example in clean.unspelled} if clean is not None else {}
    if not packed_in and (wanted or where is None):
        why = (
            f"all {len(too_long)} contexts are longer than --length {length}, and --longer {longer} leaves none"
            if too_long
            else _unpacked(len(wanted), train or ("sampled",), redacted=bool(gone))
        )
        print(f"envgym: {source}: {why}, so nothing was packed", file=sys.stderr)
    told = {"rows": rows, "contexts": packed_in, "too_long": len(too_long), "redacted": gone, "out": str(out)}
    say(told, as_json)


def _unpacked(episodes: int, roles: Iterable[str], *, redacted: bool) -> str:
    """Why a file has no row, so that it is not taken for a data set."""
    if not episodes:
        return "it holds no episode that has ended"
    left = " that redaction left" if redacted else ""
    return f"none of its {episodes} episodes has a token of the role {' or '.join(roles)} with its id{left}"


def import_command(
    source: Annotated[Path, typer.Argument(help="A file or folder of another tool's.", exists=True)],
    form: Annotated[str, typer.Option("--from", help="Its format; as of `data export`.")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Read episodes of another tool's into a store: all of them, or none; what has no place there is listed."""
    from envgym.formats import Intake, read_groups
    from envgym.formats.report import dropped_table

    with made(out) as writer:
        before = len(writer)
        intake = Intake(writer.put_image)
        writer.extend(episode for group in read_groups(source, form, intake=intake) for episode in group)
        if len(writer) == before:
            print(f"envgym: {source} holds no episode in the format {form}", file=sys.stderr)
        told: dict[str, Any] = {"imported": len(writer) - before, "images": intake.images, "out": str(out)}
        say(told | ({"dropped": [asdict(one) for one in intake.dropped]} if as_json else {}), as_json)
    if not as_json:
        console().print(dropped_table(intake.dropped, "not in the episodes"))
