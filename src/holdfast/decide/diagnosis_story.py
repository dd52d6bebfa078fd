"""A diagnosis in plain sentences, for the page, the message and the error. Called by `decide.diagnosis` only. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.model.evidence import Domain, Finding, JudgedFinding, Place, Role

NEW_LINES_MAX = 3
NEW_LINE_MAX = 160
SHOWN_S = 0.05
"""What came sooner is shown without its time: most logs do not tell it that well."""
_DOMAINS = {
    Domain.HARDWARE: "a hardware fault",
    Domain.NETWORK: "a network fault",
    Domain.STORAGE: "a storage fault",
    Domain.PLATFORM: "a fault of the platform",
    Domain.APPLICATION: "an error of the program",
    Domain.OPERATOR: "a person's doing",
    Domain.UNKNOWN: "hardware or program, this alone does not tell",
}


def headline(root: Finding, ranks: tuple[int, ...], nodes: tuple[str, ...]) -> str:
    """One sentence: what, and where."""
    where = place_text(root.place, ranks, nodes)
    what = (root.summary or root.rule).rstrip(". ")
    return f"{what}{f', on {where}' if where else ''}."


def place_text(place: Place, ranks: tuple[int, ...], nodes: tuple[str, ...]) -> str:
    """Where, from the suspects and the root's own place."""
    parts: list[str] = []
    if nodes:
        parts.append(listed(nodes))
    elif place.node:
        parts.append(place.node)
    if ranks:
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}")
    if place.gpu is not None:
        parts.append(f"GPU {place.gpu}")
    elif place.gpu_id:
        parts.append(f"GPU {place.gpu_id}")
    return ", ".join(parts)


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and 5 more`."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) <= 4:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def tell(
    root: Finding,
    findings: Sequence[Finding],
    judged: Sequence[JudgedFinding],
    *,
    ranks: tuple[int, ...],
    nodes: tuple[str, ...],
    rivals: tuple[Finding, ...],
    helps: bool | None,
    charged: bool,
    survived: Collection[str] = (),
    strange: Sequence[Finding] = (),
) -> str:
    """The story as one paragraph; `survived`: ids of findings after which the job made progress."""
    sentences = [f"{headline(root, ranks, nodes)[:-1]}: {_DOMAINS[root.domain]}."]
    by_id = {finding.id: finding for finding in findings}
    again = [by_id[j.finding] for j in judged if j.role is Role.ROOT and j.finding != root.id]
    if again:
        count = sum(f.count for f in again)
        sentences.append(f"It was seen {count + 1} times and counts as one.")
    apart = {rival.id for rival in rivals}
    cascade = [by_id[j.finding] for j in judged if j.role is Role.CASCADE and j.finding not in apart]
    if cascade:
        sentences.append(_cascade_sentence(root, cascade))
    if charged:
        sentences.append("The time-outs are charged to what happened when their wait began.")
    behind = [j for j in judged if j.finding in survived and j.role is Role.CONTEXT]
    if behind:
        sentences.append(
            f"{_number(len(behind), 'earlier error was', 'earlier errors were')} survived: progress came after."
        )
    if rivals:
        sentences.append(f"Not explained by it: {listed([rival.summary or rival.rule for rival in rivals])}.")
    sentences += _new_lines(strange)
    sentences.append(_outlook(root, nodes, helps))
    return " ".join(sentences)


def _cascade_sentence(root: Finding, cascade: list[Finding]) -> str:
    ranks = {f.place.rank for f in cascade if f.place.rank is not None}
    if root.place.rank is not None:
        ranks.discard(root.place.rank)
    last = max(f.at for f in cascade) - root.at
    after = f" within {last:.1f} s" if SHOWN_S <= last < 3600 else ""
    kinds = list(dict.fromkeys(f.rule for f in cascade))
    who = f" on {_number(len(ranks), 'other rank', 'other ranks')}" if ranks else ""
    total = sum(f.count for f in cascade)
    return f"{_number(total, 'further finding', 'further findings')}{who}{after} followed from it ({listed(kinds)})."


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _outlook(root: Finding, nodes: tuple[str, ...], helps: bool | None) -> str:
    if helps is False:
        return "A restart alone would meet the same error again."
    if helps is None:
        return "Whether a restart helps cannot be told from this."
    if root.domain is Domain.HARDWARE and nodes:
        return f"A restart helps when it leaves out {listed(nodes)}."
    return "A restart should get past it."


def _new_lines(strange: Sequence[Finding]) -> list[str]:
    """One sentence that quotes lines which the job never printed while it was well."""
    texts = dict.fromkeys(f.evidence[0].text.strip()[:NEW_LINE_MAX] for f in strange)
    quoted = "; ".join(f'"{text}"' for text in list(texts)[:NEW_LINES_MAX])
    return [f"Printed near the end and never while the job was well: {quoted}."] if quoted else []


def tell_unknown(
    shown: Sequence[Finding], strange: Sequence[Finding] = (), *, suspects: tuple[str, tuple[int, ...]] = ("", ())
) -> str:
    """What can be said when nothing explains the failure; `suspects` is the peer that others lost, and odd ranks."""
    new = _new_lines(strange)
    peer, odd = suspects
    if peer:
        new.insert(0, f"Most ranks that lost a peer lost {peer}: its own log may tell why.")
    if odd:
        named = f"Rank{'s' if len(odd) > 1 else ''} {listed([str(rank) for rank in odd])}"
        new.insert(0, f"{named} did not say what the others said.")
    if not shown:
        return " ".join(["Nothing that was seen explains the failure.", *new])
    names = listed(list(dict.fromkeys(f.summary or f.rule for f in shown)))
    return " ".join([f"The evidence is thin: no line names a cause. Candidates, earliest first: {names}.", *new])
