// Polling by ibv_start_poll, ibv_next_poll and ibv_end_poll. One completion at a time is the current one, and the
// ibv_wc_read_* functions read its fields in place.
//
// From a successful ibv_start_poll to ibv_end_poll the engine's lock is held, as other providers hold the CQ's lock.
#include <cerrno>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/verbs_ops.hpp"

namespace pollcore::soft {

namespace {

[[nodiscard]] SoftCq& of(ibv_cq_ex* cq) noexcept {
    return static_cast<SoftCq&>(*cq);
}
[[nodiscard]] const ibv_wc& current(ibv_cq_ex* cq) noexcept {
    return of(cq).front().wc;
}

/// Makes the front entry the current completion, if there is one.
[[nodiscard]] int show(SoftCq& cq) noexcept {
    cq.shown = false;
    if (cq.empty())
        return ENOENT;
    if (cq.engine->faults().armed(SoftFault::Kind::poll_cq) &&
        cq.engine->faults().meet(SoftFault::Kind::poll_cq, cq.front().wc.qp_num)) [[unlikely]] {
        return EIO;
    }
    cq.shown = true;
    cq.place_payload();
    const ibv_wc& wc = cq.front().wc;
    cq.wr_id = wc.wr_id;
    cq.status = wc.status;
    return 0;
}

int start_poll(ibv_cq_ex* base, ibv_poll_cq_attr* attr) noexcept {
    if (attr->comp_mask != 0)
        return EINVAL;
    SoftCq& cq = of(base);
    cq.engine->lock().lock();
    (void)cq.engine->move();
    const int result = cq.dead ? EIO : show(cq);
    if (result != 0)
        cq.engine->lock().unlock();
    return result;
}

int next_poll(ibv_cq_ex* base) noexcept {
    SoftCq& cq = of(base);
    if (cq.shown)
        cq.pop();
    return show(cq);
}

void end_poll(ibv_cq_ex* base) noexcept {
    SoftCq& cq = of(base);
    if (cq.shown)
        cq.pop();
    cq.shown = false;
    cq.engine->lock().unlock();
}

}  // namespace

void set_extended_ops(ibv_cq_ex& cq) noexcept {
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = end_poll;
    cq.read_opcode = [](ibv_cq_ex* it) noexcept { return current(it).opcode; };
    cq.read_vendor_err = [](ibv_cq_ex* it) noexcept { return current(it).vendor_err; };
    cq.read_byte_len = [](ibv_cq_ex* it) noexcept { return current(it).byte_len; };
    cq.read_imm_data = [](ibv_cq_ex* it) noexcept { return current(it).imm_data; };
    cq.read_qp_num = [](ibv_cq_ex* it) noexcept { return current(it).qp_num; };
    cq.read_src_qp = [](ibv_cq_ex* it) noexcept { return current(it).src_qp; };
    cq.read_wc_flags = [](ibv_cq_ex* it) noexcept { return current(it).wc_flags; };
    cq.read_slid = [](ibv_cq_ex* it) noexcept { return std::uint32_t{current(it).slid}; };
    cq.read_sl = [](ibv_cq_ex* it) noexcept { return current(it).sl; };
    cq.read_dlid_path_bits = [](ibv_cq_ex* it) noexcept { return current(it).dlid_path_bits; };
    // No functions for VLANs, flow tags and tag matching: CqOptions has no way to ask for them.
}

void set_time_op(ibv_cq_ex& cq) noexcept {
    cq.read_completion_ts = [](ibv_cq_ex* it) noexcept { return of(it).times[of(it).head & of(it).mask]; };
}

}  // namespace pollcore::soft
