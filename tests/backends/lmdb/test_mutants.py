"""Mutated input: every decoder answers with a value or with an error of ours."""

from __future__ import annotations

import sys

import pytest

from headrace.testing.children import seed
from tests.harness.faults import fuzz

MUTANTS = 20_000


@pytest.mark.parametrize("decoder", fuzz.DECODERS)
@pytest.mark.slow
def test_twenty_thousand_mutants_neither_crash_nor_hang_a_decoder(decoder: str) -> None:
    found = fuzz.fuzz(decoder, MUTANTS)
    sys.stdout.write(f"seed {seed()}: {decoder}: {found}")
    assert found.wrong == []
    assert found.accepted + found.refused == MUTANTS
    assert found.refused > MUTANTS / 10
