"""What becomes of a record that has failed."""

from __future__ import annotations

from headrace.core.computations.policy import FLOOD_RECORDS, Policy
from headrace.core.computations.verdict import FailureJudge, Verdict


def test_a_record_is_tried_again_as_often_and_as_late_as_the_policy_says() -> None:
    judge = FailureJudge(Policy(retries=3, delay="1s", delay_max="3s"))
    verdicts = [judge.failed(failed, True) for failed in (1, 2, 3, 4)]
    assert verdicts[:3] == [Verdict("retry", wait_s) for wait_s in (1.0, 2.0, 3.0)]
    assert verdicts[3].action == "stop"


def test_a_failure_that_a_retry_would_not_help_is_given_up_at_once() -> None:
    assert FailureJudge(Policy()).failed(1, False).action == "stop"
    assert FailureJudge(Policy(then="skip")).failed(1, False).action == "skip"
    assert FailureJudge(Policy(then="dead-letter")).failed(1, False).action == "dead-letter"


def test_too_many_dead_letters_stop_the_shard_and_the_count_begins_anew() -> None:
    judge = FailureJudge(Policy(then="dead-letter", dead_letters_max=3))
    actions = []
    for _ in range(5):
        actions.append(judge.failed(1, False).action)
        judge.handled(1)
    assert actions == ["dead-letter", "dead-letter", "dead-letter", "stop", "dead-letter"]


def test_the_flood_is_named_with_its_reason() -> None:
    judge = FailureJudge(Policy(then="dead-letter", dead_letters_max=0))
    assert f"of the last {FLOOD_RECORDS} records" in judge.failed(1, False).why


def test_dead_letters_long_ago_do_not_count() -> None:
    judge = FailureJudge(Policy(then="dead-letter", dead_letters_max=1))
    for _ in range(5):
        assert judge.failed(1, False).action == "dead-letter"
        judge.handled(FLOOD_RECORDS)


def test_records_of_the_same_slice_count_before_they_are_reported() -> None:
    judge = FailureJudge(Policy(then="dead-letter", dead_letters_max=1))
    at = [0, FLOOD_RECORDS, 2 * FLOOD_RECORDS, 2 * FLOOD_RECORDS + 1]
    actions = [judge.failed(1, False, handled).action for handled in at]
    assert actions == ["dead-letter", "dead-letter", "dead-letter", "stop"]


def test_the_first_failures_are_skipped_where_that_is_asked_for() -> None:
    judge = FailureJudge(Policy(retries=0), skips_left=2)
    assert [judge.failed(1, True).action for _ in range(3)] == ["skip", "skip", "stop"]


def test_skips_are_used_only_for_failures_that_would_stop_the_shard() -> None:
    judge = FailureJudge(Policy(retries=1, then="dead-letter"), skips_left=1)
    assert judge.failed(1, True).action == "retry"
    assert judge.failed(2, True).action == "dead-letter"
    assert judge.skips_left == 1
