#!/usr/bin/env python3
"""Copies a source of the runtime and puts the planted bugs of tests/sim/planted.hpp into the copy.

usage: plant.py SOURCE COPY

Each bug is a piece of text of the source, and what stands there instead: see changed_copy.py.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from changed_copy import write_copy

PLANTS = {
    "session/session.cc": [
        # ring_first
        ("        if (take_reply(out[n])) {\n",
         "        if (!(ready != 0 && sim::planted(sim::Bug::ring_first)) && take_reply(out[n])) {\n"),
    ],
    "session/submission.cc": [
        # published_early, late_word
        ("    (void)submissions_.try_push([&](WorkRequest& slot) {  // admit() reserved it\n",
         "    if (sim::planted(sim::Bug::published_early)) {\n"
         "        submissions_.write(0, WorkRequest{});\n"
         "        submissions_.commit(1);\n"
         "        schedule_point(SchedulePoint::publish);\n"
         "        submissions_.write(std::size_t(-1), request);\n"
         "        submitted();\n"
         "        return Refusal::none;\n"
         "    }\n"
         "    if (sim::planted(sim::Bug::late_word)) {\n"
         "        submitted();\n"
         "        (void)submissions_.try_push(request);\n"
         "        return Refusal::none;\n"
         "    }\n"
         "    (void)submissions_.try_push([&](WorkRequest& slot) {  // admit() reserved it\n"),
        # stale_handle
        ("    if (qp.generation != request.qp.generation || qp.state == QpState::closed) [[unlikely]] {\n",
         "    if ((qp.generation != request.qp.generation && !sim::planted(sim::Bug::stale_handle)) ||\n"
         "        qp.state == QpState::closed) [[unlikely]] {\n"),
    ],
    "session/wait.cc": [
        # careless_sleeper
        ("    if (need_not_wait()) {\n        (void)header_->application_sleep.rest();\n",
         "    if (!sim::planted(sim::Bug::careless_sleeper) && need_not_wait()) {\n"
         "        (void)header_->application_sleep.rest();\n"),
    ],
    "worker/sleep.cc": [
        # missed_rearm
        ("            (*cq)->armed = false;\n", "            (*cq)->armed = sim::planted(sim::Bug::missed_rearm);\n"),
        # no_last_look
        ("    if (arm() && !look_again()) {\n",
         "    if (arm() && (sim::planted(sim::Bug::no_last_look) || !look_again())) {\n"),
    ],
    "worker/submit.cc": [
        # stale_handle
        ("    if (share.qp == nullptr || share.handle != request.qp) [[unlikely]] {\n",
         "    if (share.qp == nullptr || (share.handle != request.qp && !sim::planted(sim::Bug::stale_handle))) {\n"),
        # wedged
        ("    const bool signal = signaled || must_signal(session, qp, share);\n",
         "    const bool signal = signaled || (!sim::planted(sim::Bug::wedged) && must_signal(session, qp, share));\n"),
    ],
    "worker/fast_path.cc": [
        # wedged
        ("            signal = must_signal(session, *qp, *run.share);\n",
         "            signal = !sim::planted(sim::Bug::wedged) && must_signal(session, *qp, *run.share);\n"),
        # lost, twice
        ("        run.session->completions.write(run.written++, [&](Completion& slot) {\n",
         "        const auto times = sim::planted(sim::Bug::lost, 100'000) ? 0u\n"
         "                           : sim::planted(sim::Bug::twice, 10'000) && run.session->completions.reserve(run.written + 2) == run.written + 2 ? 2u : 1u;\n"
         "        for (unsigned time = 0; time < times; ++time) run.session->completions.write(run.written++, [&](Completion& slot) {\n"),
        # kept_reservation
        ("        run.session->shares[run.qp->handle.index].sends -= run.ended;\n",
         "        run.session->shares[run.qp->handle.index].sends -= run.ended - sim::planted(sim::Bug::kept_reservation, 1'000);\n"),
    ],
    "worker/complete.cc": [
        # lost, twice
        ("    if (!session.completions.try_push([&](Completion& slot) { return write_slot(slot, completion); })) [[unlikely]] {\n",
         "    if (sim::planted(sim::Bug::lost, 100'000)) {\n"
         "        return;\n"
         "    }\n"
         "    if (sim::planted(sim::Bug::twice, 10'000) && session.completions.reserve(2) == 2) {\n"
         "        (void)session.completions.try_push([&](Completion& slot) { return write_slot(slot, completion); });\n"
         "    }\n"
         "    if (!session.completions.try_push([&](Completion& slot) { return write_slot(slot, completion); })) [[unlikely]] {\n"),
        # swapped
        ("    for (std::uint32_t i = 0; (i = route_ordinary(cq, i, n)) < n; ++i) {\n",
         "    if (n > 1 && sim::planted(sim::Bug::swapped, 1'000)) {\n"
         "        std::swap(wcs_[0], wcs_[1]);\n"
         "    }\n"
         "    for (std::uint32_t i = 0; (i = route_ordinary(cq, i, n)) < n; ++i) {\n"),
        # misread_status
        ("            completion.vendor_err = wc.vendor_err;\n            qp.send_failed = true;\n",
         "            completion.vendor_err = wc.vendor_err;\n            qp.send_failed = true;\n"
         "            if (sim::planted(sim::Bug::misread_status) && wc.status == IBV_WC_REM_ACCESS_ERR) {\n"
         "                completion.status = Status::loc_access_err;\n"
         "            }\n"),
        # kept_reservation
        ("    --(from_recv_queue ? share.recvs : share.sends);\n",
         "    if (from_recv_queue || !sim::planted(sim::Bug::kept_reservation, 1'000)) {\n"
         "        --(from_recv_queue ? share.recvs : share.sends);\n"
         "    }\n"),
    ],
    "control/queue_pair_ends.cc": [
        # given_back_early
        ("    forget_connection_here(*qp);\n    Retirement retirement{",
         "    forget_connection_here(*qp);\n"
         "    if (sim::planted(sim::Bug::given_back_early)) {\n"
         "        return std::nullopt;\n"
         "    }\n"
         "    Retirement retirement{"),
        ("    worker.park(qp.handle);\n    destroy_verbs_qp(qp, leftovers);\n    worker.forget(qp.handle, leftovers);\n",
         "    worker.park(qp.handle);\n"
         "    if (sim::planted(sim::Bug::given_back_early)) {\n"
         "        worker.forget(qp.handle, leftovers);\n"
         "        platform->sleep(std::chrono::microseconds(500));\n"
         "        (void)devices_[qp.device]->device->destroy(qp.qp.release());\n"
         "    } else {\n"
         "    destroy_verbs_qp(qp, leftovers);\n    worker.forget(qp.handle, leftovers);\n"
         "    }\n"),
    ],
    "control/events.cc": [
        # unacknowledged
        ("        device.device->acknowledge(*taken);\n        counters.async_events_acknowledged.add();\n",
         "        if (sim::planted(sim::Bug::unacknowledged, 10)) {\n"
         "            return;\n"
         "        }\n"
         "        device.device->acknowledge(*taken);\n        counters.async_events_acknowledged.add();\n"),
    ],
}


def main():
    source, copy = map(pathlib.Path, sys.argv[1:3])
    write_copy(source, copy, PLANTS["/".join(source.parts[-2:])], '#include "sim/planted.hpp"\n')


if __name__ == "__main__":
    main()
