"""Promises about signs of life: each member of a group beats, and the others see its last beat."""

from __future__ import annotations

import pytest

from headrace.core.ports import GroupStore, Liveness, Log
from headrace.testing.contracts.backend_under_test import BackendUnderTest


class LivenessContract(BackendUnderTest):
    """For a backend with a store. Members of groups that are kept elsewhere give no such signs."""

    @pytest.fixture
    def liveness(self, store: GroupStore | None) -> Liveness | None:
        return None if store is None else store.liveness

    def test_a_member_has_no_sign_before_its_first_beat(self, liveness: Liveness | None) -> None:
        if liveness is None:
            return
        assert liveness.sign("billing", "ann", 1) is None

    def test_a_sign_shows_the_last_beat(self, liveness: Liveness | None) -> None:
        if liveness is None:
            return
        for beat in (0, 1, 2, 2**40):
            liveness.beat("billing", "ann", 1, beat)
            sign = liveness.sign("billing", "ann", 1)
            assert sign is not None
            assert (sign.alive, sign.beat) == (True, beat)
            assert sign.age_s is not None
            assert 0 <= sign.age_s < 10

    def test_each_group_member_and_incarnation_has_its_own_sign(
        self, liveness: Liveness | None
    ) -> None:
        if liveness is None:
            return
        all_of_them = [
            (group, member, incarnation)
            for group in ("billing", "shop/billing")
            for member in ("ann", "Ann", "ann/../bob", "ä b", "x" * 200)
            for incarnation in (1, 2, 2**62)
        ]
        for beat, who in enumerate(all_of_them):
            liveness.beat(*who, beat)
        signs = [liveness.sign(*who) for who in all_of_them]
        assert [sign.beat for sign in signs if sign is not None] == list(range(len(all_of_them)))
        for who in all_of_them:
            liveness.leave(*who)
        assert {liveness.sign(*who) for who in all_of_them} == {None}

    def test_a_member_that_has_left_has_no_sign(self, liveness: Liveness | None) -> None:
        if liveness is None:
            return
        liveness.beat("billing", "ann", 1, 7)
        liveness.beat("billing", "ann", 2, 3)
        liveness.leave("billing", "ann", 1)
        assert liveness.sign("billing", "ann", 1) is None
        other = liveness.sign("billing", "ann", 2)
        assert other is not None
        assert other.beat == 3

    def test_leaving_twice_or_without_a_beat_is_allowed(self, liveness: Liveness | None) -> None:
        if liveness is None:
            return
        liveness.leave("billing", "nobody", 1)
        liveness.beat("billing", "ann", 1, 1)
        liveness.leave("billing", "ann", 1)
        liveness.leave("billing", "ann", 1)
        liveness.beat("billing", "ann", 1, 2)
        sign = liveness.sign("billing", "ann", 1)
        assert sign is not None
        assert (sign.alive, sign.beat) == (True, 2)

    def test_signs_of_life_change_nothing_in_the_store(
        self, log: Log, liveness: Liveness | None
    ) -> None:
        if liveness is None:
            return
        seen = log.changes()
        for beat in range(3):
            liveness.beat("billing", "ann", 1, beat)
        liveness.leave("billing", "ann", 1)
        assert log.changes() == seen
