// Polling of extended completion queues (ibv_create_cq_ex(3)). From ibv_start_poll() to ibv_end_poll() a thread holds a
// lock that only these functions take: in between it may post.
#include <arpa/inet.h>

#include <cerrno>
#include <mutex>

#include "conversions.hpp"
#include "next_completion.hpp"
#include "served_cq.hpp"

namespace pollcore::served {
namespace {

// Returns whether there was a completion, which is then the current one.
bool step(Cq& cq) noexcept {
    const std::lock_guard guard(cq.lock);
    const auto [completion, qp] = next_completion(cq, 16);
    if (completion == nullptr) {
        return false;
    }
    cq.current = *completion;
    cq.current_qp_num = qp->qp_base.qp_num;
    cq.wr_id = completion->tag;
    cq.status = to_wc_status(completion->status);
    return true;
}

int start_poll(ibv_cq_ex* verbs, ibv_poll_cq_attr* attr) noexcept {
    if (attr != nullptr && attr->comp_mask != 0) {
        return EINVAL;
    }
    Cq& cq = of(verbs);
    cq.polling.lock();
    if (!step(cq)) {
        cq.polling.unlock();
        return ENOENT;
    }
    return 0;
}

int next_poll(ibv_cq_ex* verbs) noexcept {
    return step(of(verbs)) ? 0 : ENOENT;
}
void end_poll(ibv_cq_ex* verbs) noexcept {
    of(verbs).polling.unlock();
}

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) noexcept {
    return to_wc_opcode(of(cq).current.opcode);
}
std::uint32_t read_vendor_err(ibv_cq_ex* cq) noexcept {
    const WideCompletion& current = of(cq).current;
    const auto status = static_cast<unsigned>(current.status);
    return status == 0 ? 0 : status < 128 ? current.vendor_err : status;
}
std::uint32_t read_byte_len(ibv_cq_ex* cq) noexcept {
    return of(cq).current.byte_len;
}
__be32 read_imm_data(ibv_cq_ex* cq) noexcept {
    const WideCompletion& current = of(cq).current;
    return (current.flags & kWithImm) != 0 ? htonl(current.imm_data) : current.invalidated_rkey;
}
std::uint32_t read_qp_num(ibv_cq_ex* cq) noexcept {
    return of(cq).current_qp_num;
}
std::uint32_t read_src_qp(ibv_cq_ex* cq) noexcept {
    return of(cq).current.src_qp;
}
unsigned read_wc_flags(ibv_cq_ex* cq) noexcept {
    return to_wc_flags(of(cq).current);
}
std::uint32_t read_slid(ibv_cq_ex* cq) noexcept {
    return of(cq).current.slid;
}
std::uint8_t read_sl(ibv_cq_ex* cq) noexcept {
    return of(cq).current.sl;
}
std::uint8_t read_dlid_path_bits(ibv_cq_ex* cq) noexcept {
    return of(cq).current.dlid_path_bits;
}
std::uint64_t read_completion_ts(ibv_cq_ex* cq) noexcept {
    return of(cq).current.device_time;
}

}  // namespace

std::uint64_t extended_flags_served(bool device_time) noexcept {
    return IBV_WC_STANDARD_FLAGS | (device_time ? static_cast<std::uint64_t>(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) : 0);
}

void install_extended(Cq& cq, std::uint64_t wc_flags) noexcept {
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = end_poll;
    cq.read_opcode = read_opcode;
    cq.read_vendor_err = read_vendor_err;
    cq.read_wc_flags = read_wc_flags;
    const auto with = [&](std::uint64_t flag, auto& member, auto* function) {
        member = (wc_flags & flag) != 0 ? function : nullptr;
    };
    with(IBV_WC_EX_WITH_BYTE_LEN, cq.read_byte_len, read_byte_len);
    with(IBV_WC_EX_WITH_IMM, cq.read_imm_data, read_imm_data);
    with(IBV_WC_EX_WITH_QP_NUM, cq.read_qp_num, read_qp_num);
    with(IBV_WC_EX_WITH_SRC_QP, cq.read_src_qp, read_src_qp);
    with(IBV_WC_EX_WITH_SLID, cq.read_slid, read_slid);
    with(IBV_WC_EX_WITH_SL, cq.read_sl, read_sl);
    with(IBV_WC_EX_WITH_DLID_PATH_BITS, cq.read_dlid_path_bits, read_dlid_path_bits);
    with(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, cq.read_completion_ts, read_completion_ts);
}

}  // namespace pollcore::served
