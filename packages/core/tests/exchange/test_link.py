"""Deadlines and failure reports of the exchange, independent of the transport."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.tables.table import TableConfig
from sparring.errors import PeerFailure
from sparring.exchange.headers import Header, HeaderInbox, Phase, compute_digest, exchange_headers
from sparring.exchange.ring import RingExchange
from sparring.storage.open import open_storage

from .late_transport import LateGroup

TABLE = TableConfig("item", 4)


def test_a_silent_rank_times_out_over_a_transport_that_polls_forever() -> None:
    """A transport whose works have no deadline while they are only polled."""
    group = LateGroup(2, deadline_seconds=2.0)

    def pull(collective: Collective) -> None:
        exchange = RingExchange(collective, ShardMap.balanced(2), ExchangeOptions(chunk_rows=5))
        limit = time.monotonic() + 60

        def poll() -> None:
            assert time.monotonic() < limit, "nobody gave up"

        exchange.session.messenger.on_stall = poll
        with pytest.raises(PeerFailure, match="no message arrived within 2 s") as caught:
            exchange.pull(open_storage("memory", TABLE), TABLE, np.arange(100), Columns(0, 4))
        assert caught.value.rank == 1

    def say_where_it_is(collective: Collective) -> None:
        exchange = RingExchange(collective, ShardMap.balanced(2), ExchangeOptions(chunk_rows=5))
        _, settings = exchange.session.all_settings()
        names = ["item[0:4]"]
        counts = np.full((2, 1), 50, np.int64)
        header = Header(Phase.LOOKUP, 0, settings, compute_digest(names), False, 1)
        exchange_headers(
            exchange.session.messenger, HeaderInbox(exchange.session.messenger), header, counts
        )

    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(body, group.join(rank))
            for rank, body in enumerate((pull, say_where_it_is))
        ]
        for future in futures:
            future.result()
