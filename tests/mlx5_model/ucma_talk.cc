// The conversations between two identifiers: asking, replying, getting ready, rejecting and leaving, and the events
// that each causes at the other end.
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <infiniband/verbs.h>

#include "ucma_clock.hpp"
#include "ucma_fabric.hpp"

namespace mlx5_model {
namespace {

using State = CmId::State;
using Talk = CmId::Talk;
using Data = std::span<const std::uint8_t>;

// The part of each message's private data that rdma_cm leaves to the program. The receiver always gets all of it, with
// zeros after the data that was sent.
constexpr std::size_t kHeaderSize = 36;
constexpr std::size_t kRequestSize = 92 - kHeaderSize;
constexpr std::size_t kReplySize = 196;
constexpr std::size_t kRejectionSize = 148;
constexpr std::size_t kDatagramRequestSize = 216 - kHeaderSize;
constexpr std::size_t kDatagramReplySize = 136;

// First the reasons of a rejection, then the states of a datagram service.
constexpr std::uint32_t kTimedOut = 4;
constexpr std::uint32_t kInvalidService = 8;
constexpr std::uint32_t kStale = 10;
constexpr std::uint32_t kByConsumer = 28;
constexpr std::uint32_t kServed = 0;
constexpr std::uint32_t kUnsupported = 1;
constexpr std::uint32_t kDatagramRejected = 2;

/// A request that finds the backlog full is sent again, as many times as the kernel sends it. The kernel waits four
/// seconds before each repetition.
constexpr std::chrono::milliseconds kAskAgainAfter{100};
constexpr int kAskedTimesMax = 16;
/// The kernel computes this time from the timeout of the path.
constexpr std::chrono::milliseconds kTimewait{20};

constexpr std::uint32_t kDatagramQkey = 0x01234567;  ///< for identifiers that request no other Q_Key
constexpr std::uint8_t kAckDelay = 16;  ///< as a ConnectX has it: 4.096 microseconds times two to the power of this
constexpr std::uint8_t kTimeoutMax = 31;

template <class Param>
void put(Param& param, Data data, std::size_t told) {
    std::copy(data.begin(), data.end(), param.private_data);
    param.private_data_len = static_cast<std::uint8_t>(told);
}

Data data_of(const rdma_ucm_conn_param& param) {
    return {param.private_data, param.private_data_len};
}

ib_uverbs_ah_attr address_vector(const CmId& id) {
    ib_uverbs_ah_attr out{};
    std::memcpy(out.grh.dgid, id.remote->gid.raw, sizeof out.grh.dgid);
    out.grh.flow_label = id.path->flow_label;
    out.grh.traffic_class = id.path->traffic_class;
    out.grh.hop_limit = kHopLimit;
    out.grh.sgid_index = kSgidIndex;
    out.is_global = 1;
    out.port_num = kPort;
    return out;
}

// The timeout covers a packet's way there and back and the delay of the other end. Both times are given as exponents of
// two. The exponent of their sum is about the greater exponent, or one more if the two differ by at most one.
std::uint8_t ack_timeout(std::uint8_t life_time) {
    const unsigned there_and_back = life_time + 1u;
    const unsigned timeout = there_and_back >= kAckDelay ? there_and_back + (kAckDelay + 1u >= there_and_back ? 1 : 0)
                                                         : kAckDelay + (there_and_back + 1 >= kAckDelay ? 1u : 0u);
    return static_cast<std::uint8_t>(std::min<unsigned>(timeout, kTimeoutMax));
}

}  // namespace

// --- Events ---

void CmFabric::tell(CmId& id, rdma_ucm_event_resp answer) {
    if (id.uid == 0 || id.removed) {
        return;
    }
    answer.uid = id.uid;
    answer.id = id.number;
    id.events->push({&id, nullptr, answer});
}

void CmFabric::tell(CmId& id, CmTold event, std::int32_t status) {
    rdma_ucm_event_resp answer{};
    answer.event = number_of(event);
    answer.status = static_cast<std::uint32_t>(status);
    tell(id, answer);
}

void CmFabric::part(CmId& id) {
    if (id.peer != nullptr) {
        id.peer->peer = nullptr;
        id.peer = nullptr;
    }
}

void CmFabric::enter_timewait(CmId& id) {
    id.talk = Talk::timewait;
    later(kTimewait, [this, number = id.number, serial = id.serial] {
        const std::lock_guard guard(lock);
        CmId* const one = find(number);
        if (one == nullptr || one->serial != serial || one->talk != Talk::timewait) {
            return;
        }
        one->talk = Talk::over;
        if (one->state == State::disconnected) {
            tell(*one, CmTold::timewait_exit);
        }
    });
}

void CmFabric::unreachable(CmId& id, std::int32_t status) {
    id.talk = Talk::over;
    tell(id, CmTold::unreachable, status);
}

// --- Asking ---

long CmFabric::connect(CmId& id, const rdma_ucm_connect& command) {
    const bool datagram = id.qp_type == IB_UVERBS_QPT_UD;
    if (id.state != State::route_resolved ||
        command.conn_param.private_data_len > (datagram ? kDatagramRequestSize : kRequestSize)) {
        return -EINVAL;
    }
    id.asked = command;
    rdma_ucm_conn_param& param = id.asked.conn_param;
    param.retry_count = std::min<std::uint8_t>(param.retry_count, 7);
    param.rnr_retry_count = std::min<std::uint8_t>(param.rnr_retry_count, 7);
    id.qp_num = param.qp_num;
    id.responder_resources = param.responder_resources;
    id.initiator_depth = param.initiator_depth;
    id.retry_count = param.retry_count;
    id.state = State::connecting;
    id.talk = datagram ? Talk::asked_datagram : Talk::asked;
    ask(id);
    return 0;
}

// Finds an old connection of the requester's queue pair that this end has not ended yet.
CmId* CmFabric::stale(const CmId& from) {
    for (const auto& [number, id] : ids_) {
        const bool holds = id->talk == Talk::was_asked || id->talk == Talk::replied || id->talk == Talk::was_replied ||
                           id->talk == Talk::established || id->talk == Talk::left || id->talk == Talk::was_left;
        if (holds && id->remote == from.device && id->remote_qp_num == from.qp_num) {
            return id.get();
        }
    }
    return nullptr;
}

void CmFabric::ask(CmId& from) {
    const bool datagram = from.qp_type == IB_UVERBS_QPT_UD;
    if (is_gone(from.remote)) {
        return unreachable(from, -ETIMEDOUT);
    }
    // A stale connection is found before the service is looked up.
    if (CmId* const old = datagram ? nullptr : stale(from); old != nullptr) {
        (void)disconnect(*old);
        return hear_rejection(from, kStale, {});
    }
    CmId* const listener = listener_for(from);
    if (listener == nullptr) {
        return datagram ? unreachable(from, kUnsupported) : hear_rejection(from, kInvalidService, {});
    }
    if (listener->qp_type != from.qp_type) {
        return datagram ? unreachable(from, kDatagramRejected) : hear_rejection(from, kByConsumer, {});
    }
    if (listener->backlog == 0) {
        return ask_again(from);
    }
    --listener->backlog;
    CmId& id = answerer(*listener, from);

    CmEvent event;
    event.about = listener;
    event.request = &id;
    event.answer.uid = listener->uid;
    event.answer.id = id.number;
    event.answer.event = number_of(CmTold::connect_request);
    const rdma_ucm_conn_param& asked = from.asked.conn_param;
    if (datagram) {
        put(event.answer.param.ud, data_of(asked), kDatagramRequestSize);
    } else {
        rdma_ucm_conn_param& param = event.answer.param.conn;
        param = asked;
        param.qkey = 0;
        param.valid = 0;
        param.responder_resources = asked.initiator_depth;
        param.initiator_depth = asked.responder_resources;
        put(param, data_of(asked), kRequestSize);
        event.answer.ece = from.asked.ece;
    }
    listener->events->push(event);
}

CmId& CmFabric::answerer(CmId& listener, CmId& from) {
    const bool datagram = from.qp_type == IB_UVERBS_QPT_UD;
    CmId& id = create(*listener.events, 0, listener.space, from.qp_type);
    id.source = from.destination;
    id.destination = from.source;
    id.device = from.remote;
    id.remote = from.device;
    id.state = State::connecting;
    id.talk = datagram ? Talk::was_asked_datagram : Talk::was_asked;
    id.peer = &from;
    from.peer = &id;
    if (!datagram) {
        id.path = from.path;
        id.path->life_time = static_cast<std::uint8_t>(ack_timeout(from.path->life_time) - 1);
        const rdma_ucm_conn_param& asked = from.asked.conn_param;
        id.remote_qp_num = from.qp_num;
        id.remote_psn = from.psn;
        id.responder_resources = asked.initiator_depth;
        id.initiator_depth = asked.responder_resources;
        id.retry_count = asked.retry_count;
        id.rnr_retry_count = asked.rnr_retry_count;
    }
    return id;
}

void CmFabric::ask_again(CmId& from) {
    if (++from.asked_times == kAskedTimesMax) {
        return unreachable(from, -ETIMEDOUT);
    }
    later(kAskAgainAfter, [this, number = from.number, serial = from.serial] {
        const std::lock_guard guard(lock);
        CmId* const one = find(number);
        if (one != nullptr && one->serial == serial && !one->removed &&
            (one->talk == Talk::asked || one->talk == Talk::asked_datagram)) {
            ask(*one);
        }
    });
}

// --- Answering ---

long CmFabric::accept(CmId& id, const rdma_ucm_accept& command) {
    if (id.state != State::connecting) {
        return -EINVAL;
    }
    const rdma_ucm_conn_param& param = command.conn_param;
    const bool with_param = param.valid != 0;
    if (with_param) {
        id.qp_num = param.qp_num;
    }
    long error = 0;
    if (id.qp_type == IB_UVERBS_QPT_UD) {
        error = reply_datagram(id, kServed, with_param ? data_of(param) : Data{});
    } else {
        error = with_param ? reply(id, command) : ready(id);
    }
    if (error != 0) {
        // Otherwise the other end would wait for an answer that never comes.
        (void)reject(id, kByConsumer, {});
    } else if (with_param) {
        id.uid = command.uid;
    }
    return error;
}

long CmFabric::reply(CmId& id, const rdma_ucm_accept& command) {
    const rdma_ucm_conn_param& param = command.conn_param;
    if (param.private_data_len > kReplySize || id.talk != Talk::was_asked) {
        return -EINVAL;
    }
    id.responder_resources = param.responder_resources;
    id.initiator_depth = param.initiator_depth;
    id.talk = Talk::replied;

    CmId& to = *id.peer;
    to.talk = Talk::was_replied;
    to.remote_qp_num = id.qp_num;
    to.remote_psn = id.psn;
    to.responder_resources = param.initiator_depth;
    to.initiator_depth = param.responder_resources;
    to.rnr_retry_count = std::min<std::uint8_t>(param.rnr_retry_count, 7);

    rdma_ucm_event_resp answer{};
    answer.event = number_of(CmTold::connect_response);
    rdma_ucm_conn_param& told = answer.param.conn;
    told.qp_num = id.qp_num;
    told.srq = param.srq;
    told.responder_resources = to.responder_resources;
    told.initiator_depth = to.initiator_depth;
    told.flow_control = param.flow_control;
    told.rnr_retry_count = to.rnr_retry_count;
    put(told, data_of(param), kReplySize);
    answer.ece = command.ece;
    tell(to, answer);
    return 0;
}

long CmFabric::ready(CmId& id) {
    if (id.talk != Talk::was_replied) {
        return -EINVAL;
    }
    id.talk = Talk::established;
    // A peer in another state already knows from rdma_notify() that the connection is established.
    if (CmId* const to = id.peer; to != nullptr && to->talk == Talk::replied) {
        to->talk = Talk::established;
        tell(*to, CmTold::established);
    }
    return 0;
}

long CmFabric::reply_datagram(CmId& id, std::uint32_t status, Data data) {
    if (id.talk != Talk::was_asked_datagram || data.size() > kDatagramReplySize) {
        return -EINVAL;
    }
    if (status == kServed && id.qkey == 0) {
        id.qkey = kDatagramQkey;
    }
    id.talk = Talk::over;
    CmId* const to = id.peer;
    part(id);
    if (to == nullptr) {
        return 0;
    }
    to->talk = Talk::over;
    rdma_ucm_event_resp answer{};
    answer.event = number_of(status == kServed ? CmTold::established : CmTold::unreachable);
    answer.status = status;
    rdma_ucm_ud_param& told = answer.param.ud;
    put(told, data, kDatagramReplySize);
    if (status == kServed) {
        to->qkey = id.qkey;
        told.qp_num = id.qp_num;
        told.qkey = id.qkey;
        told.ah_attr = address_vector(*to);
    }
    tell(*to, answer);
    return 0;
}

long CmFabric::notify(CmId& id, std::uint32_t event) {
    if (id.talk == Talk::none || event != IBV_EVENT_COMM_EST) {
        return -EINVAL;
    }
    if (id.talk == Talk::established) {
        return -EISCONN;
    }
    if (id.talk != Talk::replied) {
        return -EINVAL;
    }
    id.talk = Talk::established;
    tell(id, CmTold::established);
    return 0;
}

// --- Rejecting ---

long CmFabric::reject(CmId& id, std::uint8_t reason, Data data) {
    if (id.talk == Talk::none) {
        return -EINVAL;
    }
    if (id.qp_type == IB_UVERBS_QPT_UD) {
        return reply_datagram(id, kDatagramRejected, data);
    }
    const bool late = id.talk == Talk::replied;
    if (!late && id.talk != Talk::asked && id.talk != Talk::was_asked && id.talk != Talk::was_replied) {
        return -EINVAL;
    }
    if (data.size() > kRejectionSize) {
        return -EINVAL;
    }
    CmId* const to = id.peer;
    part(id);
    if (late) {
        enter_timewait(id);
    } else {
        id.talk = Talk::over;
    }
    if (to != nullptr) {
        hear_rejection(*to, reason, data);
    }
    return 0;
}

void CmFabric::hear_rejection(CmId& id, std::uint32_t reason, Data data) {
    switch (id.talk) {
        case Talk::asked:
        case Talk::was_asked:
        case Talk::replied:
            if (reason != kStale) {
                id.talk = Talk::over;
                break;
            }
            [[fallthrough]];
        case Talk::left:
        case Talk::was_replied:
        case Talk::established: enter_timewait(id); break;
        default: return;
    }
    if (id.state != State::connecting) {
        return;
    }
    rdma_ucm_event_resp answer{};
    answer.event = number_of(CmTold::rejected);
    answer.status = reason;
    put(answer.param.conn, data, kRejectionSize);
    tell(id, answer);
}

// --- Leaving ---

// Reports no error if there was ever a conversation, because the kernel reports none.
long CmFabric::disconnect(CmId& id) {
    if (id.talk == Talk::none) {
        return -EINVAL;
    }
    if (id.talk == Talk::established) {
        id.talk = Talk::left;
        if (id.peer != nullptr) {
            hear_leave(*id.peer);
        }
    } else if (id.talk == Talk::was_left) {
        CmId* const to = id.peer;
        part(id);
        enter_timewait(id);
        if (to != nullptr) {
            hear_left(*to);
        }
    }
    return 0;
}

void CmFabric::hear_leave(CmId& id) {
    if (id.talk != Talk::replied && id.talk != Talk::left && id.talk != Talk::established) {
        return;
    }
    id.talk = Talk::was_left;
    if (id.state == State::connecting) {
        id.state = State::disconnected;
        tell(id, CmTold::disconnected);
    }
}

void CmFabric::hear_left(CmId& id) {
    if (id.talk != Talk::left && id.talk != Talk::was_left) {
        return;
    }
    enter_timewait(id);
    if (id.state == State::connecting) {
        id.state = State::disconnected;
        tell(id, CmTold::disconnected);
    }
}

// Called before the identifier is destroyed, and when its device is removed, so that its peer does not wait for it.
void CmFabric::leave(CmId& id) {
    CmId* const to = id.peer;
    switch (id.talk) {
        case Talk::asked:
            part(id);
            if (to != nullptr) {
                hear_rejection(*to, kTimedOut, {});
            }
            break;
        case Talk::was_asked:
        case Talk::replied:
        case Talk::was_replied:
            part(id);
            if (to != nullptr) {
                hear_rejection(*to, kByConsumer, {});
            }
            break;
        case Talk::established:
            part(id);
            if (to != nullptr) {
                hear_leave(*to);
            }
            break;
        case Talk::was_left:
            part(id);
            if (to != nullptr) {
                hear_left(*to);
            }
            break;
        case Talk::was_asked_datagram: (void)reply_datagram(id, kDatagramRejected, {}); break;
        default: part(id); break;
    }
    id.talk = Talk::over;
}

// --- Queue pairs ---

long CmFabric::qp_attributes(CmId& id, std::uint32_t state, ib_uverbs_qp_attr& out) {
    out = {};
    out.qp_state = state;
    out.port_num = kPort;
    if (id.talk == Talk::none || id.qp_type == IB_UVERBS_QPT_UD) {
        out.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        if (id.qp_type == IB_UVERBS_QPT_UD) {
            if (id.qkey == 0) {
                id.qkey = kDatagramQkey;
            }
            out.qkey = id.qkey;
            out.qp_attr_mask |= IBV_QP_QKEY;
        } else {
            out.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
        }
        if (state == IBV_QPS_RTR) {
            out.rq_psn = id.psn;
        }
        return 0;
    }
    const bool knows_peer = id.talk == Talk::was_asked || id.talk == Talk::was_replied || id.talk == Talk::replied ||
                            id.talk == Talk::established;
    if (!knows_peer && !(state == IBV_QPS_INIT && id.talk == Talk::asked)) {
        return -EINVAL;
    }
    switch (state) {
        case IBV_QPS_INIT:
            out.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            out.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            if (id.responder_resources != 0) {
                out.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
            return 0;
        case IBV_QPS_RTR:
            out.qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            out.ah_attr = address_vector(id);
            out.path_mtu = IBV_MTU_4096;
            out.dest_qp_num = id.remote_qp_num;
            out.rq_psn = id.psn;
            if (id.qp_type == IB_UVERBS_QPT_RC || id.qp_type == IB_UVERBS_QPT_XRC_TGT) {
                out.qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                out.max_dest_rd_atomic = id.responder_resources;
            }
            return 0;
        case IBV_QPS_RTS:
            out.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
            out.sq_psn = id.remote_psn;
            if (id.qp_type == IB_UVERBS_QPT_RC || id.qp_type == IB_UVERBS_QPT_XRC_INI) {
                out.qp_attr_mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                out.retry_cnt = id.retry_count;
                out.rnr_retry = id.rnr_retry_count;
                out.max_rd_atomic = id.initiator_depth;
            }
            if (id.qp_type != IB_UVERBS_QPT_UC) {
                out.qp_attr_mask |= IBV_QP_TIMEOUT;
                out.timeout = id.timeout.value_or(ack_timeout(id.path->life_time));
            }
            return 0;
        default: return -EINVAL;
    }
}

}  // namespace mlx5_model
