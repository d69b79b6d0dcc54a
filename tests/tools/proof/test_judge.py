"""The judge of a proof, on evidence written by hand: wrong streams are found, right ones pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.tools.proof.evidence import Found
from headrace.tools.proof.judge import Case, Judgement, judged, same

Rows = dict[int, list[Found]]

SHARDS = 2
EACH = 6


def source() -> Rows:
    return {shard: [Found(None, b"") for _ in range(EACH)] for shard in range(SHARDS)}


def outputs(steps: int = 1) -> Rows:
    """One output for each record, in the shard of its source."""
    return {
        shard: [made(shard, offset, steps) for offset in range(EACH)] for shard in range(SHARDS)
    }


def made(shard: int, offset: int, steps: int = 1, nth: int = 0) -> Found:
    origin = f"orders:{shard}+{offset}" + "/0" * (steps - 1) + f"/{nth}"
    return Found(origin, b"%d %d %d" % (shard, offset, nth))


def first_step(found: Rows) -> Judgement:
    return judged(Case(found=found, expected={"bill": outputs()}, inputs={"orders": source()}))


def second_step(found: Rows, before: Rows) -> Judgement:
    return judged(Case(found=found, expected={"post": outputs(2)}, inputs={"invoices": before}))


def test_a_stream_with_every_record_once_and_in_order_is_clean() -> None:
    verdict = first_step(outputs())
    assert verdict.clean
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.unexpected) == (0, 0, 0, 0)
    assert verdict.found == verdict.expected == SHARDS * EACH
    assert not verdict.notes


Edit = Callable[[Rows], object]

WRONG: list[tuple[str, Edit, tuple[int, int, int, int]]] = [
    ("lost", lambda found: found[0].pop(2), (1, 0, 0, 0)),
    ("the last is lost", lambda found: found[1].pop(), (1, 0, 0, 0)),
    ("doubled", lambda found: found[0].insert(3, found[0][2]), (0, 1, 0, 0)),
    ("doubled later", lambda found: found[0].append(found[0][2]), (0, 1, 0, 0)),
    ("doubled elsewhere", lambda found: found[1].append(found[0][2]), (0, 1, 0, 0)),
    ("three times", lambda found: found[0].extend([found[0][2]] * 2), (0, 2, 0, 0)),
    ("swapped", lambda found: found[0].insert(3, found[0].pop(2)), (0, 0, 1, 0)),
    ("late", lambda found: found[0].append(found[0].pop(0)), (0, 0, 1, 0)),
    ("unexpected", lambda found: found[0].append(made(0, 5, nth=1)), (0, 0, 0, 1)),
    ("unexpected twice", lambda found: found[0].extend([made(0, 5, nth=1)] * 2), (0, 1, 0, 1)),
    ("another instead", lambda found: found[0].__setitem__(5, made(0, 5, nth=1)), (1, 0, 0, 1)),
]


@pytest.mark.parametrize(("what", "edit", "counts"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_stream_is_judged_wrong(
    what: str, edit: Edit, counts: tuple[int, int, int, int]
) -> None:
    found = outputs()
    edit(found)
    verdict = first_step(found)
    told = verdict.lost, verdict.doubled, verdict.out_of_order, verdict.unexpected
    assert told == counts
    assert not verdict.clean
    assert verdict.examples


def test_an_unexpected_output_is_shown_with_a_hint() -> None:
    found = outputs()
    found[0].append(made(0, 5, nth=1))
    assert "clock" in " ".join(first_step(found).notes)


def test_several_outputs_of_one_record_have_an_order_too() -> None:
    both = {0: [made(0, 0), made(0, 0, nth=1)]}
    swapped = {0: [made(0, 0, nth=1), made(0, 0)]}
    for found, wrong in ((both, 0), (swapped, 1)):
        case = Case(found=found, expected={"bill": both}, inputs={"orders": source()})
        assert judged(case).out_of_order == wrong


def test_outputs_from_different_shards_have_no_order() -> None:
    """All go to one shard: only records from one input shard keep their order."""
    rows = outputs()
    mixed = {0: [row for pair in zip(rows[1], rows[0], strict=True) for row in pair]}
    assert first_step(mixed).clean
    mixed[0].insert(0, mixed[0].pop())
    assert first_step(mixed).out_of_order == EACH - 1


def test_a_later_step_is_ordered_by_what_it_has_read() -> None:
    """Records of one source shard may have come through two computations: their order in the source
    does not count."""
    before = {0: [made(0, offset) for offset in (3, 0, 4)], 1: [made(0, n) for n in (1, 2, 5)]}
    before[1] += outputs()[1]
    as_read = {0: [made(0, n, 2) for n in (3, 0, 4, 1, 2, 5)], 1: outputs(2)[1]}
    assert second_step(as_read, before).clean
    by_source = {0: [made(0, n, 2) for n in range(EACH)], 1: outputs(2)[1]}
    assert second_step(by_source, before).out_of_order == 1  # 0 before 3


def test_a_record_that_was_read_twice_may_make_two_outputs() -> None:
    before, after = outputs(), outputs(2)
    before[0].append(before[0][1])
    after[0].append(after[0][1])
    case = Case(found=after, expected={"post": after}, inputs={"invoices": before})
    assert judged(case).clean


def test_outputs_with_other_values_are_noted() -> None:
    found = outputs()
    found[0][1] = found[0][1]._replace(content=b"other")
    verdict = first_step(found)
    assert verdict.clean
    assert verdict.different == 1
    assert "other values" in " ".join(verdict.notes)


def test_two_writers_of_one_stream_are_told_apart() -> None:
    other = {
        s: [f._replace(content=b"B" + f.content) for f in rows] for s, rows in outputs().items()
    }
    writers = {"a": outputs(), "b": other}

    def verdict(found: Rows) -> Judgement:
        return judged(Case(found=found, expected=writers, inputs={"orders": source()}))

    both = {shard: [*other[shard], *outputs()[shard]] for shard in range(SHARDS)}
    assert verdict(both).clean
    assert verdict({**both, 0: [*both[0], both[0][0]]}).doubled == 1
    assert verdict({**both, 0: both[0][1:]}).lost == 1


def test_the_notes_say_which_outputs_have_no_order() -> None:
    before = {"x": outputs(), "y": outputs()}
    found = {0: [*outputs(2)[0], *outputs(2)[0]], 1: [*outputs(2)[1], *outputs(2)[1]]}
    verdict = judged(Case(found=found, expected={"join": found}, inputs=before))
    assert verdict.clean
    assert "several ways" in " ".join(verdict.notes)


def test_outputs_of_timers_are_counted_and_not_judged() -> None:
    found = outputs()
    found[0].append(Found(None, b"tick"))
    verdict = first_step(found)
    assert verdict.clean
    assert "no record" in " ".join(verdict.notes)


# Batches


def batch_step(found: Rows, expected: Rows) -> Judgement:
    return judged(
        Case(found=found, expected={"index": expected}, inputs={"orders": source()}, batch=True)
    )


def shifted(rows: Rows) -> Rows:
    """The same outputs, with batches that began elsewhere."""
    return {
        shard: [Found(f"orders:{shard}+2/{n}", row.content) for n, row in enumerate(found)]
        for shard, found in rows.items()
    }


def test_batches_are_compared_by_content() -> None:
    verdict = batch_step(shifted(outputs()), outputs())
    assert verdict.clean
    assert verdict.compared == "content"
    assert verdict.out_of_order is None
    assert verdict.notes


def test_lost_and_doubled_outputs_of_batches_are_found() -> None:
    found = shifted(outputs())
    found[0].pop()
    assert batch_step(found, outputs()).lost == 1
    found = shifted(outputs())
    found[0].append(Found("orders:0+9/0", found[0][0].content))
    assert batch_step(found, outputs()).doubled == 1


def test_outputs_that_depend_on_where_batches_end_are_not_judged() -> None:
    sums = {0: [Found("orders:0+0/0", b"sum 10"), Found("orders:0+4/0", b"sum 3")]}
    other = {0: [Found("orders:0+0/0", b"sum 6"), Found("orders:0+2/0", b"sum 7")]}
    verdict = batch_step(other, sums)
    assert verdict.clean
    assert (verdict.lost, verdict.compared) == (None, "count")
    assert "where they end" in " ".join(verdict.notes)
    twice = {0: [*other[0], other[0][0]]}
    assert batch_step(twice, sums).doubled == 1


# Outputs that differ between runs


def test_outputs_that_differ_between_runs_are_only_counted() -> None:
    found = outputs()
    found[0].pop()
    case = Case(
        found=found, expected={"bill": outputs()}, inputs={"orders": source()}, only_counted="dice"
    )
    verdict = judged(case)
    assert verdict.clean
    assert (verdict.lost, verdict.doubled, verdict.compared) == (None, 0, "count")
    found[0].append(found[0][0])
    assert judged(case).doubled == 1


def test_counted_outputs_may_repeat_if_their_input_did() -> None:
    twice = [*outputs()[0], *outputs()[0]]
    both = [made(0, offset, 2) for offset in range(EACH)] * 2
    for batch in (False, True):
        case = Case(
            found={0: both},
            expected={"throw": {}},
            inputs={"invoices": {0: twice}},
            only_counted="dice",
            batch=batch,
        )
        assert judged(case).doubled == 0
        assert judged(replace(case, found={0: [*both, both[0]]})).doubled == 1


def test_two_runs_are_the_same_if_their_origins_are() -> None:
    shuffled = dict(reversed(outputs().items()))
    assert same(outputs(), shuffled)
    shuffled[0].pop()
    assert not same(outputs(), shuffled)
