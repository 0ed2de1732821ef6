"""The page of norms has all that the registries have."""

import itertools

import pytest

from ablate.norms import initializations, norm_layers, placements
from docs.pages.norms import build_page


def test_everything_is_on_it():
    text = build_page()
    for kind in [*placements.names, *norm_layers.names, *initializations.names]:
        assert f"### {kind}\n" in text
    for cls in (placements[kind] for kind in placements):
        assert cls.rule
        assert cls.source
        assert cls.diagram
        assert all(words in text for words in (cls.rule, cls.source, cls.diagram, cls.initialisation, cls.caveats))


def test_parameters_are_counted():
    """Against what each formula needs: its norms of d, m (the MLP's width) or k (a head's), and its learned factors."""
    section = {part.partition("\n")[0]: part for part in build_page().split("### ")[1:]}
    expected = {"pre": "2d", "sandwich": "4d", "layerscale": "4d", "residual_scalar": "2d + 2", "admin": "4d"}
    expected |= {"subln": "3d + m", "hybrid": "d + 3k", "b2t": "2d", "olmo2": "2d"}
    for kind, count in expected.items():
        assert f"- Parameters: {count} in" in section[kind], kind


@pytest.mark.parametrize("kind", placements)
def test_the_lines_of_a_diagram_meet(kind):
    """Each corner lies below a branching, an addition or another line."""
    above = {"└": "┬│", "┘": "+┤", "┤": "+┤", "│": "┬│"}
    lines = placements[kind].diagram.split("\n")
    for upper, lower in itertools.pairwise(lines):
        for column, character in enumerate(lower):
            if character in above:
                assert upper[column : column + 1] in above[character], f"\n{upper}\n{lower}"
