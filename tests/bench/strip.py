#!/usr/bin/env python3
"""Copies a source of the runtime without statistics, stage latency and admission, to see what these cost.

usage: strip.py SOURCE COPY

A benchmark's, and nothing else's: what is left admits whatever comes, so its load has to keep within the limits by itself,
and come in bursts, since what goes the general way is counted there and not in the ordinary one.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from changed_copy import write_copy

CHANGES = {
    "pollcore/counter.hpp": [
        ("value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);", "(void)n;"),
    ],
    "session/submission.cc": [
        # stage latency
        ("    if (accepted_ >= next_sample_) [[unlikely]] {\n        follow(slot, opcode);\n    }\n", "    (void)slot;\n    (void)opcode;\n"),
        ("        if (accepted_ >= next_sample_) [[unlikely]] {\n            follow_one_of(requests.first(result.accepted));\n        }\n", ""),
        # admission
        ("           head.is_one_of(mine.ordinary) && inline_length <= mine.inline_max && mine.send_outstanding < mine.send_depth;",
         "           head.is_one_of(mine.ordinary) && inline_length <= mine.inline_max;"),
        ("    if (room() < wanted) [[unlikely]] {\n        (void)refresh_completion_room();\n    }\n"
         "    return std::min<std::size_t>(room(), reserve_slots(wanted));\n",
         "    (void)room;\n    return reserve_slots(wanted);\n"),
        (" || !head.is_one_of(mine->ordinary) || outstanding >= mine->send_depth) [[unlikely]] {", " || !head.is_one_of(mine->ordinary)) [[unlikely]] {"),
        ("        ++outstanding;\n", ""),
    ],
    "session/session.cc": [
        ("        if (!is_ordinary(last)) [[unlikely]] {\n", "        ++n;\n        continue;\n        if (!is_ordinary(last)) [[unlikely]] {\n"),
    ],
    "worker/fast_path.cc": [
        ("    if (session.closing) [[unlikely]] {\n        return 0;\n    }\n", "    return static_cast<std::uint32_t>(std::min<std::size_t>(wanted, kChainWrs - wrs_used_));\n"),
        ("    run.left = std::min({run.share->send_depth - std::min(run.share->sends, run.share->send_depth), run.qp->sends.room(), budget_left(*run.qp)});\n",
         "    run.left = budget_left(*run.qp);\n"),
        ("    run.share->sends += run.taken;\n    session.in_flight += run.taken;\n", "    (void)session;\n"),
        ("        if (const auto since = static_cast<std::uint32_t>(rkey_and_sample >> 32); since != 0) [[unlikely]] {\n"
         "            begin_sample(session, entry, since);\n        }\n", ""),
        ("            run.most = static_cast<std::uint32_t>(run.session->completions.reserve(std::min(n - i, kPublishedAtOnce)));\n",
         "            run.most = std::min(n - i, kPublishedAtOnce);\n"),
        ("        run.session->shares[run.qp->handle.index].sends -= run.ended;\n        run.session->in_flight -= run.ended;\n", ""),
    ],
}


def main():
    source, copy = map(pathlib.Path, sys.argv[1:3])
    write_copy(source, copy, CHANGES["/".join(source.parts[-2:])])


if __name__ == "__main__":
    main()
