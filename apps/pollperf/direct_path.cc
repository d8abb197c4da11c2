// The set-up of the direct path, and its error messages.
#include "direct_path.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "connect/gid.hpp"
#include "connect/transitions.hpp"
#include "pollcore/completion.hpp"

namespace pollcore::perf {

DirectPath::DirectPath(Device& device, const PathSetup& setup)
    : device_(device),
      layout_(setup.layout),
      gid_(setup.gid),
      ends_used_(setup.ends),
      domain_(device.create_thread_domain()),
      memory_(static_cast<std::byte*>(::operator new[](setup.layout.bytes() * setup.ends, kMemoryAlignment))),
      pd_(device.create_pd(), {&device}) {
    const std::size_t bytes = layout_.bytes() * setup.ends;
    std::memset(memory_.get(), 0, bytes);
    mr_ = UniqueMr(
        device.register_memory(pd_.get(), memory_.get(), bytes, reinterpret_cast<std::uintptr_t>(memory_.get()),
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                   (device.limits().atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0)),
        {&device});
    if (setup.wait == Waiting::sleep) {
        channel_ = device.create_channel(domain_.get());
    }
    // The CQ has room for all completions of every queue of both ends.
    cq_ = UniqueCq(device.create_cq({.cqe = setup.ends * (kSendDepth + kReceiveSlots),
                                     .domain = domain_.get(),
                                     .channel = channel_ != nullptr ? channel_->verbs() : nullptr}),
                   {&device});
    for (unsigned index = 0; index < setup.ends; ++index) {
        create_end(index, setup);
    }
}

DirectPath::~DirectPath() {
    if (unacknowledged_ != 0) {
        channel_->acknowledge(*cq_, unacknowledged_);
    }
}

void DirectPath::sleep() {
    constexpr std::uint32_t kEventsPerAck = 64;  // acknowledged together, because ibv_ack_cq_events(3) locks a mutex
    const auto event = [this] {
        ibv_cq* cq = nullptr;
        const int result = channel_->next_event(cq);
        if (result != 0 && result != EAGAIN) {
            throw MeasurementError(
                fmt::format("path event: cannot read a completion event: {}", std::strerror(result)));
        }
        if (result == 0 && ++unacknowledged_ == kEventsPerAck) {
            channel_->acknowledge(*cq_, std::exchange(unacknowledged_, 0));
        }
        return result == 0;
    };
    if (const int error = ibv_req_notify_cq(cq_.get(), 0); error != 0) {
        throw MeasurementError(fmt::format("path event: ibv_req_notify_cq: {}", std::strerror(error)));
    }
    if (take() > 0) {
        return;
    }
    using Clock = std::chrono::steady_clock;
    for (const auto deadline = Clock::now() + Watch::kSleepMax; !event();) {
        const auto now = Clock::now();
        const Clock::time_point again(Clock::duration(static_cast<Clock::rep>(std::min<std::uint64_t>(
            channel_->look_again_ns(), static_cast<std::uint64_t>(deadline.time_since_epoch().count())))));
        if (now >= deadline) {
            return;
        }
        const auto left = std::max<std::chrono::nanoseconds>(again - now, std::chrono::nanoseconds(0));
        const timespec limit{.tv_sec = 0,
                             .tv_nsec = static_cast<long>(left.count())};  // kSleepMax is less than a second
        pollfd readable{.fd = channel_->fd(), .events = POLLIN, .revents = 0};
        (void)::ppoll(&readable, 1, &limit, nullptr);
    }
}

void DirectPath::create_end(unsigned index, const PathSetup& setup) {
    auto requests = std::make_unique<Requests>();
    QpOptions options{.pd = pd_.get(), .domain = domain_.get(), .send_cq = cq_.get(), .recv_cq = cq_.get()};
    options.cap = {.max_send_wr = kSendDepth,
                   .max_recv_wr = kReceiveSlots,
                   .max_send_sge = 1,
                   .max_recv_sge = 1,
                   .max_inline_data = setup.inline_max};
    requests->qp = UniqueQp(device_.create_qp(options), {&device_});
    Transition init =
        to_init(device_.port(), access_flags({.read = true, .write = true, .atomic = device_.limits().atomics}));
    device_.modify(requests->qp.get(), init.attr, init.mask);

    EndState& state = ends_[index];
    state.memory = memory_.get() + index * layout_.bytes();
    for (std::uint32_t slot = 0; slot < kReceiveSlots; ++slot) {
        requests->receive_sges[slot] = {.addr = reinterpret_cast<std::uintptr_t>(state.memory + layout_.slot(slot)),
                                        .length = layout_.size,
                                        .lkey = mr_->lkey};
        const bool chain_ends = (slot + 1) % kRepostBatch == 0;
        requests->receives[slot] = {.wr_id = index | kReceiveBit,
                                    .next = chain_ends ? nullptr : &requests->receives[slot + 1],
                                    .sg_list = &requests->receive_sges[slot],
                                    .num_sge = 1};
    }
    requests_[index] = std::move(requests);
    while (state.reposted < kReceiveSlots) {
        repost(index);
    }
}

void DirectPath::connect_ends() {
    const GidEntry gid = choose_gid(device_, gid_);
    const ibv_port_attr port = device_.query_port();
    std::random_device random;
    std::array<QpInfo, 2> infos{};
    for (unsigned index = 0; index < 2; ++index) {
        std::memcpy(infos[index].gid.data(), gid.gid.raw, infos[index].gid.size());
        infos[index].qp_num = requests_[index]->qp->qp_num;
        infos[index].psn = random() & 0xffffff;
        infos[index].lid = port.lid;
        infos[index].mtu = mtu_to_bytes(port.active_mtu);
    }
    PathAttributes path;
    const auto within_device = static_cast<std::uint8_t>(std::min<std::uint32_t>(16, device_.limits().rd_atomic_max));
    path.max_rd_atomic = path.max_dest_rd_atomic = within_device;
    for (unsigned index = 0; index < 2; ++index) {
        ibv_qp* qp = requests_[index]->qp.get();
        Transition rtr =
            to_rtr(infos[1 - index], path, device_.port(), static_cast<std::uint8_t>(gid.index), port.active_mtu);
        device_.modify(qp, rtr.attr, rtr.mask);
        Transition rts = to_rts(infos[index].psn, path);
        device_.modify(qp, rts.attr, rts.mask);
    }
}

std::vector<std::byte> DirectPath::connect(const std::string& address, const std::vector<std::byte>& private_data,
                                           std::chrono::milliseconds timeout) {
    link_ = std::make_unique<DirectLink>(device_, requests_[kNear]->qp.get());
    return link_->connect(address, private_data, timeout);
}

std::string DirectPath::listen(const std::string& address) {
    link_ = std::make_unique<DirectLink>(device_, requests_[kNear]->qp.get());
    return link_->listen(address);
}

std::optional<PeerRequest> DirectPath::next_request(std::chrono::milliseconds timeout) {
    return link_->next_request(timeout);
}
void DirectPath::accept(const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout) {
    link_->accept(private_data, timeout);
}
void DirectPath::reject(const std::vector<std::byte>& private_data) {
    link_->reject(private_data);
}
bool DirectPath::peer_left() {
    return link_ && link_->peer_left();
}
void DirectPath::disconnect(std::chrono::milliseconds timeout) {
    link_->disconnect(timeout);
}

RemoteBlock DirectPath::own_block(unsigned index) const {
    return {reinterpret_cast<std::uintptr_t>(ends_[index].memory + layout_.in()), mr_->rkey};
}

void DirectPath::prepare(const Workload& workload) {
    workload_ = workload;
    always_signal_ = workload.one_sided || workload.buffer_reused();
    send_flags_ = workload.inlined ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u;
    for (unsigned index = 0; index < ends_used_; ++index) {
        build(workload.op, index, requests_[index]->send, requests_[index]->send_sge);
    }
}

void DirectPath::build(Op op, unsigned index, ibv_send_wr& wr, ibv_sge& sge) const {
    const EndState& state = ends_[index];
    sge = {.addr = reinterpret_cast<std::uintptr_t>(state.memory + layout_.out()),
           .length = op == Op::fetch_add ? kAtomicSize : workload_.size,
           .lkey = mr_->lkey};
    wr = {};
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    switch (op) {
        case Op::send: wr.opcode = IBV_WR_SEND; break;
        case Op::write:
        case Op::read:
            wr.opcode = op == Op::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = state.remote.addr;
            wr.wr.rdma.rkey = state.remote.rkey;
            break;
        case Op::fetch_add:
            wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic.remote_addr = state.remote.addr;
            wr.wr.atomic.rkey = state.remote.rkey;
            wr.wr.atomic.compare_add = 1;
            break;
    }
}

void DirectPath::post_once(Op op) {
    ibv_send_wr wr{};
    ibv_sge sge{};
    build(op, kNear, wr, sge);
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(requests_[kNear]->qp.get(), &wr, &bad); error != 0) {
        fail_post(kNear, "ibv_post_send", error);
    }
    ++ends_[kNear].issued;
    ++ends_[kNear].signaled;
}

std::string DirectPath::name_of(unsigned index) const {
    return fmt::format("queue pair {}{}", requests_[index]->qp->qp_num,
                       ends_used_ == 2 ? (index == kNear ? " (first end)" : " (second end)") : "");
}

void DirectPath::look_after_peer(unsigned index, const char* what) {
    if (peer_left()) {
        throw MeasurementError(fmt::format("path direct, {}: the peer left while {} waited for {}",
                                           op_name(workload_.op), name_of(index), what));
    }
}

std::string DirectPath::stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const {
    const EndState& state = ends_[index];
    return fmt::format(
        "path direct, {}: {} has waited {} ms for {} (posted {}, signaled {}, completed {}, "
        "received {}, now message {})",
        op_name(workload_.op), name_of(index), timeout.count(), what, state.issued, state.signaled, state.completed,
        state.received, state.sequence);
}

void DirectPath::fail_post(unsigned index, const char* call, int error) {
    throw MeasurementError(fmt::format("path direct, {} of {} bytes: {} on {} failed: {}", op_name(workload_.op),
                                       workload_.size, call, name_of(index), std::strerror(error)));
}

void DirectPath::fail_completion(const ibv_wc& wc) {
    const auto index = static_cast<unsigned>(wc.wr_id & kEndBit);
    throw MeasurementError(
        fmt::format("path direct, {} of {} bytes, after {} requests: {} of {} completed with {} "
                    "({}), vendor code {:#x}{}",
                    op_name(workload_.op), workload_.size, ends_[index].issued,
                    (wc.wr_id & kReceiveBit) != 0 ? "a receive" : "a request", name_of(index),
                    status_name(static_cast<Status>(wc.status)), status_text(static_cast<Status>(wc.status)),
                    wc.vendor_err, peer_left() ? "; the peer left" : ""));
}

void DirectPath::fail_poll(int result) {
    throw MeasurementError(fmt::format("path direct: ibv_poll_cq on {} failed: {}", device_.describe(), result));
}

}  // namespace pollcore::perf
