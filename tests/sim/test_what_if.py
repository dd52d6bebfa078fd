"""What-if answers: Meta's formula at three sizes, Llama 3's causes, comparisons under the same faults."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.sim.causes import META_RSC1, META_U0_S
from holdfast.sim.page import bar, bars, figures, names_of, render
from holdfast.sim.what_if import Case, Question, ask, check, options_for, run_one

UNLIMITED = "[limits]\nmax_requeues = 1000\n"
"""The formula knows no budget: a job is always started again."""
SMALL = Question(gpus=64, days=10, failures=40.0, save_s=30.0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("gpus", "days"), [(256, 20.0), (2048, 5.0), (16384, 2.0)])
def test_the_mean_ettr_of_20_seeds_is_metas(gpus, days):
    """Rate 6.50 per 1000 node-days, u0 = 5 min, w = 1 min, the best dt: within 1.5 % of the formula."""
    question = Question(
        gpus=gpus, days=days, failures=META_RSC1, causes="gpu", save_s=60.0, start_s=60.0, load_s=META_U0_S - 60.0
    )
    [answer] = ask(question, [Case(policy=UNLIMITED, spares=16)], range(20), processes=2)
    deviation, least, greatest = answer.spread
    print(f"{gpus} GPUs: {answer.ettr:.4f} +/- {deviation:.4f} ({least:.4f} to {greatest:.4f}), {answer.formula:.4f}")
    assert answer.ettr == pytest.approx(answer.formula, rel=0.015)
    assert least < greatest
    assert sum(run.refused for run in answer.runs) == 0


def test_an_answer_adds_up():
    """Productive time and all that was lost are the whole; goodput leaves only the beginning out."""
    [answer] = ask(SMALL, [Case()], [0, 1])
    for run in answer.runs:
        assert run.ettr + sum(run.badput.values()) == pytest.approx(1.0)
        assert run.goodput == pytest.approx(run.ettr / (1.0 - run.badput["startup"]))
        assert run.faults > 0
    assert answer.checkpoint_s == pytest.approx((2 * 30.0 / (8 * 40.0 / 1000 / 86400)) ** 0.5)


def test_cases_meet_the_same_faults():
    """Saving ten times too often or too rarely is worse than the best interval, and nothing else differs."""
    best = Case()
    [alone] = ask(SMALL, [best], [3])
    dt = alone.checkpoint_s
    cases = [Case(checkpoint_s=dt / 10), best, Case(checkpoint_s=dt * 10)]
    often, right, rarely = ask(SMALL, cases, [3])
    assert right.ettr > max(often.ettr, rarely.ettr)
    assert often.badput["save"] > right.badput["save"] > rarely.badput["save"]
    assert often.badput["recompute"] < right.badput["recompute"] < rarely.badput["recompute"]
    assert right.runs[0].digest == alone.runs[0].digest


def test_a_policy_without_in_place_restarts_costs_time():
    """The same faults under a policy whose ladders know only the queue."""
    ladders = "\n".join(f'{kind} = ["requeue", "stop"]' for kind in ("application", "network", "hang", "unknown"))
    question = Question(gpus=64, days=10, failures=40.0, causes="software", start_s=600.0)
    ours, slow = ask(question, [Case(policy=UNLIMITED), Case(policy=f"{UNLIMITED}[ladders]\n{ladders}\n")], [1])
    assert ours.badput["start"] < slow.badput["start"]
    assert ours.ettr > slow.ettr


def test_without_spares_a_job_waits_for_repairs():
    """A broken node's replacement takes 25 minutes, which a spare saves."""
    question = Question(gpus=64, days=10, failures=40.0, causes="gpu")
    none, four = ask(question, [Case(policy=UNLIMITED, spares=0), Case(policy=UNLIMITED, spares=4)], [1])
    assert none.badput["queue"] > 10 * four.badput["queue"]


def test_runs_beside_each_other_are_the_same_runs():
    """Two processes give what one gives."""
    one = ask(SMALL, [Case()], [0, 1])
    two = ask(SMALL, [Case()], [0, 1], processes=2)
    assert [run.digest for run in two[0].runs] == [run.digest for run in one[0].runs]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": 63}, "no multiple"),
        ({"days": 0.0}, "--days 0"),
        ({"jobs": 3}, "cannot be shared"),
        ({"failures": -1.0}, "less than nothing"),
        ({"failures": 0.0}, "no best interval"),
    ],
)
def test_a_question_without_sense_is_refused_in_a_sentence(change, says):
    """Before anything runs."""
    fields = {name: getattr(SMALL, name) for name in SMALL.__struct_fields__}
    with pytest.raises(UsageError, match=says):
        check(Question(**(fields | change)), [Case()])


def test_many_jobs_share_the_cluster():
    """Four jobs of two nodes each, each with its own launcher and recovery."""
    question = Question(gpus=64, days=3, jobs=4, failures=100.0)
    run = run_one(question, Case(policy=UNLIMITED), 5)
    assert len(options_for(question, Case(), 5).jobs) == 4
    assert run.attempts >= 4
    assert 0.5 < run.ettr < 1.0


def test_the_page_holds_its_data_and_no_text_from_outside_as_markup():
    """Opens without a network; a policy's name cannot end the script."""
    answers = ask(SMALL, [Case(policy_name="</script><b>mine"), Case(policy_name="other")], [0])
    page = render("T<i>", [("seeds", "1")], answers, script="")
    assert "<b>mine" not in page
    assert "T&lt;i&gt;" in page
    assert "https://" not in page
    lost = figures(answers)[0]["data"]
    assert [trace["name"] for trace in lost] == list(answers[0].badput)
    assert len({trace["marker"]["color"].upper() for trace in lost}) == len(lost)  # told apart


def test_bars_are_as_long_as_their_share():
    """One scale for all cases; an eighth of a cell is the finest."""
    assert bar(1.0, 1.0, 10) == "█" * 10
    assert bar(0.5, 1.0, 10) == "█" * 5
    assert bar(0.0, 1.0, 10) == ""
    answers = ask(SMALL, [Case(spares=1), Case(spares=2)], [0])
    assert names_of(answers) == ["1 spare", "2 spares"]
    assert sum("ETTR" in line for line in bars(answers)) == 2
