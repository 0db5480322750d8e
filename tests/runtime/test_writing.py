"""Arguments that are written to must be apart from all others."""

from __future__ import annotations

from dort_rewriter.runtime.writing import Apart, Kept


def test_neighbours_are_apart() -> None:
    apart = Apart([4, 4], [True, False])
    assert apart((100, 116), ((4,), (4,)))
    assert apart((116, 100), ((4,), (4,)))
    assert apart((100, 116), ((4,), (4,)))


def test_what_is_written_overlaps_with_nothing() -> None:
    apart = Apart([4, 4], [True, False])
    assert not apart((100, 112), ((4,), (4,)))
    assert not apart((112, 100), ((4,), (4,)))
    assert not apart((100, 100), ((4,), (4,)))
    assert not Apart([4, 4], [True, True])((100, 104), ((2,), (2,)))
    assert not Apart([4, 8], [True, False])((108, 100), ((2,), (2,)))


def test_what_is_only_read_may_overlap() -> None:
    assert Apart([4, 4, 4], [True, False, False])((300, 100, 104), ((2,), (4,), (4,)))


def test_a_large_one_holds_what_is_far_from_its_start() -> None:
    apart = Apart([4, 4, 4], [False, False, True])
    assert not apart((100, 104, 180), ((100,), (2,), (2,)))


def test_nothing_overlaps_with_what_is_empty() -> None:
    assert Apart([4, 4], [True, False])((100, 100), ((0,), (4,)))


def test_other_shapes_are_looked_at_again() -> None:
    apart = Apart([4, 4], [True, False])
    assert apart((100, 116), ((4,), (4,)))
    assert not apart((100, 116), ((5,), (4,)))


def test_what_is_kept_is_for_the_same_places_and_shapes() -> None:
    kept, shapes, made = Kept(), ((4,),), object()
    assert kept.take((100,), shapes) is None
    for places, of_shapes in (((100,), tuple((n,) for n in (4,))), ((116,), shapes)):
        kept.keep((100,), shapes, made)
        assert kept.take(places, of_shapes) is None
    kept.keep((100,), shapes, made)
    assert kept.take((100,), shapes) is made


def test_what_one_call_has_is_not_there_for_another() -> None:
    kept, shapes = Kept(), ((4,),)
    kept.keep((100,), shapes, object())
    kept.take((100,), shapes)
    assert kept.take((100,), shapes) is None
