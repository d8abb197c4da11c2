// Polls with ibv_start_poll, ibv_next_poll and ibv_end_poll, but fills ibv_wc structs as ibv_poll_cq does (D35).
//
// A provider can omit its lock only in these calls (H6). Reading a field costs a call through a pointer, so only valid
// and useful fields are read (I6). The other fields of the ibv_wc keep their old values.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cerrno>

#include <infiniband/verbs.h>

#include "worker/worker_cq.hpp"
#include "worker/wr_id.hpp"

namespace pollcore {

/// Reads the sender of a datagram. The extended calls cannot return the P_Key index.
[[gnu::noinline]] inline void read_origin(ibv_cq_ex& cq, ibv_wc& wc) noexcept {
    wc.src_qp = ibv_wc_read_src_qp(&cq);
    wc.slid = static_cast<std::uint16_t>(ibv_wc_read_slid(&cq));
    wc.sl = ibv_wc_read_sl(&cq);
    wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(&cq);
    wc.pkey_index = 0;
}

template <bool kQpNumbers>
[[gnu::always_inline]] inline void read_current(ibv_cq_ex& cq, bool datagrams, ibv_wc& wc) noexcept {
    wc.wr_id = cq.wr_id;
    wc.status = cq.status;
    if (kQpNumbers || SrqWrId::names(cq.wr_id)) [[unlikely]] {
        wc.qp_num = ibv_wc_read_qp_num(&cq);
    }
    if (cq.status != IBV_WC_SUCCESS) [[unlikely]] {
        wc.vendor_err = ibv_wc_read_vendor_err(&cq);
        return;
    }
    wc.byte_len = ibv_wc_read_byte_len(&cq);
    if (!WrId::unpack(cq.wr_id).recv) {
        return;  // the in-flight entry has the other values
    }
    wc.opcode = ibv_wc_read_opcode(&cq);
    wc.wc_flags = ibv_wc_read_wc_flags(&cq);
    if ((wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0) {
        wc.imm_data = ibv_wc_read_imm_data(&cq);
    }
    if (datagrams) [[unlikely]] {
        read_origin(cq, wc);
    }
}

/// Takes up to `most` completions (at least 1), and returns their number. Returns -1 if the CQ has failed and gives no
/// more completions. If the CQ fails after some completions were taken, the next call returns -1. If `times` is not
/// null, it gets the device's time of each successful completion, and 0 for each failed one. With `kQpNumbers`, all
/// completions have the number of their QP; else only shared receives have it.
template <bool kQpNumbers = false>
[[nodiscard, gnu::always_inline]] inline int read_extended(WorkerCq& cq, int most, ibv_wc* wcs,
                                                           std::uint64_t* times) noexcept {
    ibv_cq_ex& from = *cq.options().extended;
    const bool datagrams = cq.datagram_qps() != 0;
    int taken = 0;
    const auto take = [&] {
        read_current<kQpNumbers>(from, datagrams, wcs[taken]);
        if (times != nullptr) {
            times[taken] = from.status == IBV_WC_SUCCESS ? ibv_wc_read_completion_ts(&from) : 0;
        }
        ++taken;
    };
    int result = cq.broken();
    while (result == 0 && taken < most) {
        ibv_poll_cq_attr attr{};
        result = ibv_start_poll(&from, &attr);
        if (result != 0) {
            break;
        }
        take();
        while (cq.options().next_poll && taken < most && (result = ibv_next_poll(&from)) == 0) {
            take();
        }
        ibv_end_poll(&from);
    }
    if (result != 0 && result != ENOENT) [[unlikely]] {
        cq.break_off(result);
        return taken > 0 ? taken : -1;
    }
    return taken;
}

}  // namespace pollcore
