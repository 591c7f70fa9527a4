"""Waiting ranks find the rank that failed first."""

from __future__ import annotations

from sparring.contracts.ranks.notices import NO_RANK, Failure, Inquiry, Notice, NoticeKind


def answer(inquiry: Inquiry, source: int, waits_for: int) -> None:
    inquiry.note(source, Notice(NoticeKind.ANSWER, waits_for, inquiry.round))


def test_one_query_is_sent_for_waits_with_similar_deadlines() -> None:
    inquiry = Inquiry(0, 10.0)
    assert not inquiry.is_due(110.0, 109.4)
    assert inquiry.is_due(110.0, 109.6)
    answer(inquiry, 1, 2)
    # The exchange polls its messages in turn, each of which has a separate deadline.
    limits = [110.0, 110.01, 110.02]
    asked = sum(inquiry.is_due(limits[look % 3], 109.6 + look * 0.001) for look in range(400))
    assert asked <= 2
    assert inquiry.verdict(1).culprit == 2


def test_answers_to_old_queries_are_ignored() -> None:
    inquiry = Inquiry(0, 10.0)
    assert inquiry.is_due(110.0, 109.6)
    answer(inquiry, 1, 2)
    assert inquiry.is_due(210.0, 209.6)
    assert inquiry.verdict(1).culprit == 1


def test_the_culprit_is_the_silent_rank_if_all_others_wait_for_each_other() -> None:
    inquiry = Inquiry(0, 10.0)
    assert inquiry.is_due(110.0, 109.6)
    answer(inquiry, 1, 0)
    assert inquiry.verdict(1, [1, 2]).culprit == 2
    answer(inquiry, 2, NO_RANK)
    assert inquiry.verdict(2, [1, 2]).culprit == 2
    assert inquiry.verdict(1, [1, 2]).culprit == 1


def test_a_report_contains_whether_the_rank_left() -> None:
    failure = Failure.left(2)
    notice = Notice.decode(failure.notice().encode())
    assert Failure.from_report(1, notice) == Failure(
        2, "rank 1 reports that rank 2 left the group", True
    )
    notice = Notice.decode(Failure(0, "its connection failed").notice().encode())
    assert Failure.from_report(1, notice) == Failure(0, "rank 1 reports that rank 0 failed")


def test_a_rank_that_is_reported_as_failed_sees_that_the_others_left() -> None:
    about_me = Failure(2, "nothing came").notice()
    assert Failure.from_notice(1, about_me, 2) == Failure.left(1)
    assert Failure.from_notice(1, about_me, 3) == Failure.from_report(1, about_me)
    assert Failure.from_notice(1, Notice(NoticeKind.LEFT), 2) == Failure.left(1)
