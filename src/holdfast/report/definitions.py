"""What each figure means, once: formula, unit, source. The docs page and every report quote this table.

Pure data; nothing here measures time.
"""

from __future__ import annotations

from msgspec import Struct

META = "A. Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters, arXiv:2410.21680"
GOOGLE = "Google Cloud, Introducing ML Productivity Goodput: a metric to measure AI system efficiency, 2024"
DALY = "J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006"
MISSION_CONTROL_GUIDE = (
    "NVIDIA, Mission Control Systems Quick Start Guide 2.0.0, Autonomous Job Recovery User Guide, Overview"
    " (docs.nvidia.com/mission-control)"
)
PRACTICE = "common practice in reliability engineering (IEC 60050-192 for the terms)"


class Definition(Struct, frozen=True):
    """One figure: `symbol` as shown, `name`, `formula` in words, `unit`, `source`."""

    symbol: str
    name: str
    formula: str
    unit: str
    source: str


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "MTTD",
        "mean time to detect",
        "mean over incidents of (detected - fault). Fault is the true time of an injected fault in a drill, else the"
        " time of the earliest evidence where it was seen; a hang or a collective's time-out is as old as it says it"
        " waited, at most as old as its attempt.",
        "s",
        PRACTICE,
    ),
    Definition(
        "MTTR",
        "mean time to resume training",
        "mean over recovered incidents of (first step completed by the new attempt - fault). It ends when training"
        " moves again, before the lost steps are recomputed; the time to proof is given beside it.",
        "s",
        PRACTICE,
    ),
    Definition(
        "MTTP",
        "mean time to proof",
        "mean over recovered incidents of (proven - fault). Proven is set by policy: by default the first durable"
        " checkpoint of the new attempt, so it holds up to one checkpoint interval.",
        "s",
        "Holdfast's own: a restart counts only once progress is durable",
    ),
    Definition(
        "MTBF",
        "mean time between failures",
        "time that jobs were up (an attempt's processes running), summed over jobs, divided by the number of"
        " failures: incidents whose fault ended an attempt. What a person ordered (causes operator.*, such as giving a"
        " job up) is no fault, and no failure here, in MTTD, MTTR and MTTP, in a fleet's counts and in verdicts. Not"
        " defined without a failure.",
        "s",
        PRACTICE,
    ),
    Definition(
        "failure rate",
        "failures per 1000 node-days",
        "1000 x failures / node-days, where failures are those of MTBF without drills, and node-days are the days for"
        " which each node was observed in the span, summed over nodes: from the time at which Holdfast first saw it in"
        " the cluster (again, when it had left) until it left. Time before that is in no rate, however long the span"
        " that was asked for. While the controller is down nodes count as observed: it learns of failures when it"
        " starts.",
        "per 1000 node-days",
        META,
    ),
    Definition(
        "ETTR",
        "effective training time ratio",
        "productive time / wall time of the job run, where productive time is time spent on steps whose result was"
        " kept: start-up, restart, waiting and recomputed steps do not count. A job of whose steps nothing tells is in"
        " no ETTR and goodput; what it lost is the time from each fault to its next start.",
        "ratio",
        META,
    ),
    Definition(
        "goodput",
        "runtime goodput",
        "as ETTR, in percent of the wall time since the first step: what is lost to initial start-up is left out, so"
        " that short runs can be compared.",
        "%",
        GOOGLE,
    ),
    Definition(
        "training-time efficiency",
        "part of the time in which training was kept",
        "trained / (trained + downtime), summed over attempts and jobs. An attempt trained from its first completed"
        " step to its newest durable checkpoint, or to its end when it completed or still runs. Downtime lasts from the"
        " newest checkpoint before a failure to the first step that the next attempt completes, by which it has loaded:"
        " work that was not saved is downtime. An attempt that ended before the point that `proof` of the policy names"
        " (by default its first durable checkpoint) is a failed restart; one that saved nothing is downtime to its end."
        " The start-up of a job's first attempt counts in neither.",
        "%",
        MISSION_CONTROL_GUIDE,
    ),
    Definition(
        "badput",
        "lost time by category",
        "wall time that was not productive, split into: start-up (first nodes to first step, with prolog and container"
        " image), detect (fault to detected), stop (detected to stopped), restart (stopped to started), load (started"
        " to first step), recompute (lost steps x step time), other.",
        "s",
        GOOGLE,
    ),
    Definition(
        "best interval",
        "time from save to save at which least is lost",
        "sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M), where w is the time that a save holds the training and M the"
        " job's own MTBF; Young's and Meta's sqrt(2 w M) is its first term. Within 1 % of the true optimum up to w = M,"
        " the first term alone within 5 % up to w = 0.05 M",
        "s",
        DALY,
    ),
    Definition(
        "lost share",
        "share of a job's time that is lost at an interval",
        "1 - (dt - w) exp(-R / M) / (M (exp(dt / M) - 1)), with dt from save to save and R the mean time from a fault"
        " to the first step behind it. Meta's 1 - (1 - (R + dt / 2) / M) / (1 + w / dt) is its first order: 0.01 lower"
        " at w = 0.05 M and the best interval, and not to be used beyond",
        "ratio",
        DALY,
    ),
    Definition(
        "lost steps",
        "steps computed again",
        "last step completed before the fault - step of the checkpoint that the new attempt loaded",
        "steps",
        PRACTICE,
    ),
)


def definition(symbol: str) -> Definition:
    """The definition of `symbol`.

    Raises:
        KeyError: there is none.
    """
    return _BY_SYMBOL[symbol]


_BY_SYMBOL = {entry.symbol: entry for entry in DEFINITIONS}
