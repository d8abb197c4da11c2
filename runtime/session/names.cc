// Names and sentences of statuses, refusals and events.
#include <array>

#include "pollcore/completion.hpp"
#include "pollcore/event.hpp"
#include "pollcore/session.hpp"

namespace pollcore {
namespace {

struct StatusWords {
    Status status;
    std::string_view name;
    std::string_view text;
};

constexpr std::array kStatuses{
    StatusWords{Status::success, "IBV_WC_SUCCESS", "success"},
    StatusWords{Status::loc_len_err, "IBV_WC_LOC_LEN_ERR", "local length error"},
    StatusWords{Status::loc_qp_op_err, "IBV_WC_LOC_QP_OP_ERR", "local QP operation error"},
    StatusWords{Status::loc_eec_op_err, "IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error"},
    StatusWords{Status::loc_prot_err, "IBV_WC_LOC_PROT_ERR", "local protection error"},
    StatusWords{Status::wr_flush_err, "IBV_WC_WR_FLUSH_ERR", "Work Request Flushed Error"},
    StatusWords{Status::mw_bind_err, "IBV_WC_MW_BIND_ERR", "memory management operation error"},
    StatusWords{Status::bad_resp_err, "IBV_WC_BAD_RESP_ERR", "bad response error"},
    StatusWords{Status::loc_access_err, "IBV_WC_LOC_ACCESS_ERR", "local access error"},
    StatusWords{Status::rem_inv_req_err, "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error"},
    StatusWords{Status::rem_access_err, "IBV_WC_REM_ACCESS_ERR", "remote access error"},
    StatusWords{Status::rem_op_err, "IBV_WC_REM_OP_ERR", "remote operation error"},
    StatusWords{Status::retry_exc_err, "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded"},
    StatusWords{Status::rnr_retry_exc_err, "IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded"},
    StatusWords{Status::loc_rdd_viol_err, "IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation error"},
    StatusWords{Status::rem_inv_rd_req_err, "IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request"},
    StatusWords{Status::rem_abort_err, "IBV_WC_REM_ABORT_ERR", "aborted error"},
    StatusWords{Status::inv_eecn_err, "IBV_WC_INV_EECN_ERR", "invalid EE context number"},
    StatusWords{Status::inv_eec_state_err, "IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state"},
    StatusWords{Status::fatal_err, "IBV_WC_FATAL_ERR", "fatal error"},
    StatusWords{Status::resp_timeout_err, "IBV_WC_RESP_TIMEOUT_ERR", "response timeout error"},
    StatusWords{Status::general_err, "IBV_WC_GENERAL_ERR", "general error"},
    StatusWords{Status::tm_err, "IBV_WC_TM_ERR", "TM error"},
    StatusWords{Status::tm_rndv_incomplete, "IBV_WC_TM_RNDV_INCOMPLETE", "TM software rendezvous"},
    StatusWords{Status::post_refused, "POLLCORE_POST_REFUSED", "the provider refused the post"},
    StatusWords{Status::request_refused, "POLLCORE_REQUEST_REFUSED", "the worker refused the request"},
    StatusWords{Status::qp_closed, "POLLCORE_QP_CLOSED", "the queue pair was closed"},
    StatusWords{Status::session_closed, "POLLCORE_SESSION_CLOSED", "the session was closed"},
    StatusWords{Status::device_removed, "POLLCORE_DEVICE_REMOVED", "the device was removed"},
    StatusWords{Status::daemon_gone, "POLLCORE_DAEMON_GONE", "the daemon is gone"},
    StatusWords{Status::srq_closed, "POLLCORE_SRQ_CLOSED", "the shared receive queue was closed"},
    StatusWords{Status::flow_violation, "POLLCORE_FLOW_VIOLATION", "the peer broke the agreement on flow control"},
    StatusWords{Status::message_too_long, "POLLCORE_MESSAGE_TOO_LONG",
                "the message is longer than the peer's receives"},
};

constexpr std::array<std::string_view, kRefusalKinds> kRefusals{
    "none",
    "submission_ring_full",
    "completion_ring_full",
    "send_queue_full",
    "receive_queue_full",
    "srq_full",
    "stale_handle",
    "not_connected",
    "qp_in_error",
    "bad_opcode",
    "bad_flags",
    "too_many_sges",
    "no_sge",
    "inline_too_long",
    "misaligned_atomic",
    "not_receiver",
    "no_share",
    "message_too_long",
    "session_closed",
};
static_assert(!kRefusals.back().empty());

constexpr std::array<std::string_view, kVerbsEventTypes> kEventTypes{
    "IBV_EVENT_CQ_ERR",
    "IBV_EVENT_QP_FATAL",
    "IBV_EVENT_QP_REQ_ERR",
    "IBV_EVENT_QP_ACCESS_ERR",
    "IBV_EVENT_COMM_EST",
    "IBV_EVENT_SQ_DRAINED",
    "IBV_EVENT_PATH_MIG",
    "IBV_EVENT_PATH_MIG_ERR",
    "IBV_EVENT_DEVICE_FATAL",
    "IBV_EVENT_PORT_ACTIVE",
    "IBV_EVENT_PORT_ERR",
    "IBV_EVENT_LID_CHANGE",
    "IBV_EVENT_PKEY_CHANGE",
    "IBV_EVENT_SM_CHANGE",
    "IBV_EVENT_SRQ_ERR",
    "IBV_EVENT_SRQ_LIMIT_REACHED",
    "IBV_EVENT_QP_LAST_WQE_REACHED",
    "IBV_EVENT_CLIENT_REREGISTER",
    "IBV_EVENT_GID_CHANGE",
    "IBV_EVENT_WQ_FATAL",
};

// The runtime's own types, from EventType::device_removed on.
constexpr std::array<std::string_view, 9> kOwnEventTypes{
    "POLLCORE_EVENT_DEVICE_REMOVED", "POLLCORE_EVENT_STOPPING",       "POLLCORE_EVENT_CONNECT_REQUEST",
    "POLLCORE_EVENT_ESTABLISHED",    "POLLCORE_EVENT_CONNECT_FAILED", "POLLCORE_EVENT_DISCONNECTED",
    "POLLCORE_EVENT_QP_ERROR",       "POLLCORE_EVENT_RESET_DONE",     "POLLCORE_EVENT_CLOSED",
};
static_assert(kOwnEventTypes.size() ==
              static_cast<std::size_t>(EventType::closed) - static_cast<std::size_t>(EventType::device_removed) + 1);

const StatusWords* find(Status status) noexcept {
    for (const StatusWords& words : kStatuses) {
        if (words.status == status) {
            return &words;
        }
    }
    return nullptr;
}

}  // namespace

std::string_view status_name(Status status) noexcept {
    const StatusWords* words = find(status);
    return words != nullptr ? words->name : "unknown status";
}

std::string_view status_text(Status status) noexcept {
    const StatusWords* words = find(status);
    return words != nullptr ? words->text : "unknown status";
}

std::string_view refusal_name(Refusal refusal) noexcept {
    const auto i = static_cast<std::size_t>(refusal);
    return i < kRefusals.size() ? kRefusals[i] : "unknown refusal";
}

std::string_view refusal_text(Refusal refusal) noexcept {
    switch (refusal) {
        case Refusal::none: return "the request was accepted";
        case Refusal::submission_ring_full:
            return "the submission ring is full: try again, the worker empties it within microseconds";
        case Refusal::completion_ring_full:
            return "all completion slots are reserved for requests in flight: poll, or open the session with more "
                   "completion_slots";
        case Refusal::send_queue_full:
            return "the session's share of the send queue is full: poll, or make the queue pair with a greater "
                   "send_depth";
        case Refusal::receive_queue_full:
            return "the receive queue is full: poll, or make the queue pair with a greater recv_depth";
        case Refusal::srq_full: return "the shared receive queue is full: poll, or make it with a greater depth";
        case Refusal::stale_handle:
            return "the queue pair or shared receive queue was closed or reset, or never made: take handle() anew";
        case Refusal::not_connected:
            return "the queue pair is not connected yet, or is in RESET: connect it, or wait for its peer";
        case Refusal::qp_in_error:
            return "the queue pair is in error: Session::cause says why, and reset() begins anew";
        case Refusal::bad_opcode:
            return "the queue pair's type or its device does not have this operation (opcodes_of)";
        case Refusal::bad_flags: return "the flags do not exist, or do not fit the operation";
        case Refusal::too_many_sges: return "there are more SGEs than the sges_max of the queue";
        case Refusal::no_sge: return "num_sge is 0 but sge.length is not: set num_sge to 1, or the length to 0";
        case Refusal::inline_too_long: return "the inline payload is longer than the inline_max of the queue pair";
        case Refusal::misaligned_atomic:
            return "an atomic needs one SGE of 8 bytes, and a remote address that is a multiple of 8";
        case Refusal::not_receiver:
            return "another session, a shared receive queue or a pool has the receives of this queue pair";
        case Refusal::no_share: return "the session has no share of the queue pair (QueuePairOptions::shares)";
        case Refusal::message_too_long:
            return "the message is longer than the peer's receives (Session::message_max), and cannot go by rendezvous";
        case Refusal::session_closed: return "the session is closed, or was never opened";
    }
    return "unknown refusal";
}

std::string_view event_type_name(EventType type) noexcept {
    const auto i = static_cast<std::size_t>(type);
    if (i < kEventTypes.size()) {
        return kEventTypes[i];
    }
    const std::size_t own = i - static_cast<std::size_t>(EventType::device_removed);
    return own < kOwnEventTypes.size() ? kOwnEventTypes[own] : "unknown event";
}

}  // namespace pollcore
