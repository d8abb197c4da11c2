// Tools to test a device through libibverbs alone: queues, memory and connected queue pairs on one device, and the
// answers that nic_probe prints.
#pragma once

#include <poll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <infiniband/verbs.h>

namespace nic {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The outcome of a question about the device. `held` and `failed` say whether a claim of the project is true. `found`
/// means that the project makes no claim, and `absent` that the device does not offer the feature.
enum class Outcome { held, failed, found, absent };

struct Answer {
    Outcome outcome;
    std::string text;
    std::vector<std::pair<std::string, double>> figures{};
};

/// Thrown if the device does not offer the feature that a question is about.
struct NotOffered : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool condition, const std::string& what, int error = 0) {
    if (!condition) {
        throw std::runtime_error(error == 0 ? what : what + ": " + std::strerror(error));
    }
}
template <class T>
T* made(T* object, const char* what) {
    require(object != nullptr, what, errno);
    return object;
}

// The results of these calls are ignored: a destructor cannot report an error.
struct Destroy {
    void operator()(ibv_cq* cq) const { (void)ibv_destroy_cq(cq); }
    void operator()(ibv_qp* qp) const { (void)ibv_destroy_qp(qp); }
    void operator()(ibv_srq* srq) const { (void)ibv_destroy_srq(srq); }
    void operator()(ibv_mr* mr) const { (void)ibv_dereg_mr(mr); }
    void operator()(ibv_comp_channel* channel) const { (void)ibv_destroy_comp_channel(channel); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;

/// An open device, with one of its ports and one GID.
struct Device {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    std::uint8_t port = 1;
    int gid_index = 0;
    ibv_gid gid{};
    ibv_port_attr port_attr{};
    ibv_device_attr_ex attr{};
    bool extended = false;  // the device has ibv_query_device_ex
    bool quick = true;      // measure no figures

    [[nodiscard]] Owned<ibv_cq> cq(int entries, ibv_comp_channel* channel = nullptr) const {
        return Owned<ibv_cq>(made(ibv_create_cq(context, entries, nullptr, channel, 0), "cannot make a CQ"));
    }
    /// Waits for an asynchronous event of this type, and skips events of other types. Returns false if none came within
    /// `patience`.
    [[nodiscard]] bool event(ibv_event_type type, milliseconds patience) const {
        const auto deadline = Clock::now() + patience;
        while (Clock::now() < deadline) {
            pollfd file{context->async_fd, POLLIN, 0};
            if (::poll(&file, 1, 10) != 1) {
                continue;
            }
            ibv_async_event event{};
            if (ibv_get_async_event(context, &event) == 0) {
                ibv_ack_async_event(&event);
                if (event.event_type == type) {
                    return true;
                }
            }
        }
        return false;
    }
};

/// Bytes that the device may read and write.
class Memory {
public:
    Memory(const Device& device, std::size_t size)
        : bytes_(size),
          region_(made(ibv_reg_mr(device.pd, bytes_.data(), size,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_ATOMIC),
                       "cannot register memory; see ulimit -l")) {}

    [[nodiscard]] unsigned char* at(std::size_t i) { return bytes_.data() + i; }
    [[nodiscard]] std::uint64_t addr(std::size_t i = 0) { return reinterpret_cast<std::uintptr_t>(at(i)); }
    [[nodiscard]] std::uint32_t key() const { return region_->rkey; }
    [[nodiscard]] ibv_sge sge(std::size_t i, std::uint32_t length) { return {addr(i), length, region_->lkey}; }
    [[nodiscard]] std::size_t size() const { return bytes_.size(); }
    void fill(unsigned char value) { std::fill(bytes_.begin(), bytes_.end(), value); }

private:
    std::vector<unsigned char> bytes_;
    Owned<ibv_mr> region_;
};

struct Shape {
    ibv_cq* send_cq = nullptr;
    ibv_cq* recv_cq = nullptr;
    std::uint32_t depth = 128;  // depth of each queue
    std::uint32_t inline_size = 0;
    bool signal_all = false;
    ibv_srq* srq = nullptr;
    std::uint8_t rnr_timer = 12;  // 0.64 ms
    std::uint8_t rnr_retry = 7;   // for ever
    std::uint8_t timeout = 14;    // 67 ms
    std::uint8_t retries = 7;
};

using QpMaker = std::function<ibv_qp*(ibv_qp_init_attr&)>;

/// An RC queue pair.
class QueuePair {
public:
    QueuePair(const Device& device, const Shape& shape, const QpMaker& maker) : device_(device), shape_(shape) {
        ibv_qp_init_attr attr{};
        attr.send_cq = shape.send_cq;
        attr.recv_cq = shape.recv_cq;
        attr.srq = shape.srq;
        attr.cap = {shape.depth, shape.srq != nullptr ? 0 : shape.depth, 1, 1, shape.inline_size};
        attr.qp_type = IBV_QPT_RC;
        attr.sq_sig_all = shape.signal_all ? 1 : 0;
        qp_.reset(made(maker ? maker(attr) : ibv_create_qp(device.pd, &attr), "cannot make a queue pair"));
    }

    [[nodiscard]] ibv_qp* get() const { return qp_.get(); }
    [[nodiscard]] std::uint32_t number() const { return qp_->qp_num; }

    void connect(std::uint32_t peer) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = device_.port;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = device_.port_attr.active_mtu;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = shape_.rnr_timer;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = device_.gid;
        attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device_.gid_index);
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.dlid = device_.port_attr.lid;
        attr.ah_attr.port_num = device_.port;
        modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = shape_.timeout;
        attr.retry_cnt = shape_.retries;
        attr.rnr_retry = shape_.rnr_retry;
        attr.max_rd_atomic = 1;
        modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC);
    }
    void enter(ibv_qp_state state) {
        ibv_qp_attr attr{};
        attr.qp_state = state;
        modify(attr, IBV_QP_STATE);
    }

    /// Returns the result of ibv_post_recv().
    int try_receive(std::uint64_t id, ibv_sge sge) {
        ibv_recv_wr work{id, nullptr, &sge, 1};
        ibv_recv_wr* bad = nullptr;
        return ibv_post_recv(get(), &work, &bad);
    }
    void receive(std::uint64_t id, ibv_sge sge) {
        const int error = try_receive(id, sge);
        require(error == 0, "cannot post a receive", error);
    }
    void post(ibv_send_wr& work) {
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(get(), &work, &bad);
        require(error == 0, "cannot post", error);
    }
    void post(ibv_wr_opcode opcode, std::uint64_t id, ibv_sge sge, std::uint64_t remote = 0, std::uint32_t rkey = 0,
              unsigned flags = IBV_SEND_SIGNALED) {
        ibv_send_wr work = request(opcode, id, &sge, remote, rkey, flags);
        post(work);
    }
    static ibv_send_wr request(ibv_wr_opcode opcode, std::uint64_t id, ibv_sge* sge, std::uint64_t remote,
                               std::uint32_t rkey, unsigned flags) {
        ibv_send_wr work{};
        work.wr_id = id;
        work.sg_list = sge;
        work.num_sge = 1;
        work.opcode = opcode;
        work.send_flags = flags;
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            work.wr.atomic = {.remote_addr = remote, .compare_add = 1, .swap = 0, .rkey = rkey};
        } else {
            work.wr.rdma = {.remote_addr = remote, .rkey = rkey};
        }
        return work;
    }

private:
    void modify(ibv_qp_attr& attr, int mask) {
        const int error = ibv_modify_qp(get(), &attr, mask);
        require(error == 0, "cannot move a queue pair to state " + std::to_string(attr.qp_state), error);
    }

    const Device& device_;
    Shape shape_;
    Owned<ibv_qp> qp_;
};

/// Two queue pairs of the device, connected to each other.
struct Pair {
    Pair(const Device& device, const Shape& shape, const QpMaker& maker = {})
        : a(device, shape, maker), b(device, shape, maker) {
        a.connect(b.number());
        b.connect(a.number());
    }
    QueuePair a;
    QueuePair b;
};

/// Polls until `n` completions have come or `patience` is over. Returns the completions that have come.
inline std::vector<ibv_wc> take(ibv_cq* cq, std::size_t n, milliseconds patience = milliseconds(30'000)) {
    std::vector<ibv_wc> all;
    const auto deadline = Clock::now() + patience;
    ibv_wc some[32];
    while (all.size() < n) {
        const int got = ibv_poll_cq(cq, static_cast<int>(std::min<std::size_t>(32, n - all.size())), some);
        require(got >= 0, "cannot poll a CQ");
        all.insert(all.end(), some, some + got);
        if (got == 0 && Clock::now() > deadline) {
            break;
        }
    }
    return all;
}
inline ibv_wc take_one(ibv_cq* cq, milliseconds patience = milliseconds(30'000)) {
    const std::vector<ibv_wc> all = take(cq, 1, patience);
    require(!all.empty(), "no completion came");
    return all.front();
}
inline std::string name_of(ibv_wc_status status) {
    return ibv_wc_status_str(status);
}

struct Question {
    const char* id;
    const char* claim;
    std::function<Answer(const Device&)> ask;
    bool costs = false;  // true: the question only measures
};

/// The questions about the behaviour of the device, and about its costs.
std::vector<Question> behaviour();
std::vector<Question> costs();

}  // namespace nic
