// The set-up of the direct path, and its error messages.
#include "pollperf/paths/direct_path.hpp"

#include <poll.h>
#include <sched.h>

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
      transport_(setup.transport),
      gid_(setup.gid),
      mtu_(setup.mtu),
      domain_(device.create_thread_domain()),
      memory_(static_cast<std::byte*>(::operator new[](setup.layout.bytes() * setup.ends, kMemoryAlignment))),
      pd_(device.create_pd(), {&device}),
      repost_batch_(repost_batch(setup.layout.receive_slots)),
      yields_(setup.wait == Waiting::yield && setup.others),
      ends_(setup.ends) {
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
    // The CQ has room for all completions of every queue of all ends.
    cq_ = UniqueCq(device.create_cq({.cqe = setup.ends * (setup.send_depth + setup.layout.receive_slots),
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

void DirectPath::sleep(std::chrono::nanoseconds patience) {
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
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::min<std::chrono::nanoseconds>(patience, Watch::kSleepMax);
    if (const int error = ibv_req_notify_cq(cq_.get(), 0); error != 0) {
        throw MeasurementError(fmt::format("path event: ibv_req_notify_cq: {}", std::strerror(error)));
    }
    if (take() > 0) {
        return;
    }
    while (!event()) {
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

void DirectPath::give_up_cpu() noexcept {
    (void)::sched_yield();
}

void DirectPath::create_end(unsigned index, const PathSetup& setup) {
    auto requests = std::make_unique<Requests>();
    QpOptions options{.pd = pd_.get(),
                      .domain = domain_.get(),
                      .send_cq = cq_.get(),
                      .recv_cq = cq_.get(),
                      .type = static_cast<ibv_qp_type>(setup.transport)};
    options.cap = {.max_send_wr = setup.send_depth,
                   .max_recv_wr = layout_.receive_slots,
                   .max_send_sge = 1,
                   .max_recv_sge = 1,
                   .max_inline_data = setup.inline_max};
    requests->qp = UniqueQp(device_.create_qp(options), {&device_});
    Transition init =
        setup.transport == QpType::ud
            ? to_datagram_init(device_.port(), kQkey)
            : to_init(device_.port(),
                      access_flags({.read = setup.transport == QpType::rc,
                                    .write = true,
                                    .atomic = setup.transport == QpType::rc && device_.limits().atomics}));
    device_.modify(requests->qp.get(), init.attr, init.mask);

    EndState& state = ends_[index];
    state.memory = memory_.get() + index * layout_.bytes();
    requests->sends.resize(setup.post_list);
    requests->send_sges.resize(setup.post_list);
    requests->receives.resize(layout_.receive_slots);
    requests->receive_sges.resize(layout_.receive_slots);
    for (std::uint32_t slot = 0; slot < layout_.receive_slots; ++slot) {
        requests->receive_sges[slot] = {.addr = reinterpret_cast<std::uintptr_t>(state.memory + layout_.receive(slot)),
                                        .length = layout_.receive_length(),
                                        .lkey = mr_->lkey};
        const bool chain_ends = (slot + 1) % repost_batch_ == 0;
        requests->receives[slot] = {.wr_id = RequestId::receive(index),
                                    .next = chain_ends ? nullptr : &requests->receives[slot + 1],
                                    .sg_list = &requests->receive_sges[slot],
                                    .num_sge = 1};
    }
    requests_.push_back(std::move(requests));
    while (state.reposted < layout_.receive_slots) {
        repost(index);
    }
}

std::vector<EndInfo> DirectPath::own_ends() const {
    const GidEntry gid = choose_gid(device_, gid_);
    const ibv_port_attr port = device_.query_port();
    std::vector<EndInfo> infos(ends_.size());
    for (unsigned index = 0; index < ends_.size(); ++index) {
        QpInfo& info = infos[index].qp;
        std::memcpy(info.gid.data(), gid.gid.raw, info.gid.size());
        info.qp_num = requests_[index]->qp->qp_num;
        if (transport_ == QpType::ud) {
            info.qkey = kQkey;
        } else {
            info.psn = info.qp_num * 7919u & 0xffffff;  // differs between queue pairs; nobody has to guess it
        }
        info.lid = port.lid;
        info.mtu = mtu_to_bytes(port.active_mtu);
        info.type = transport_;
        infos[index].memory = {reinterpret_cast<std::uintptr_t>(ends_[index].memory + layout_.in(0)), mr_->rkey};
    }
    return infos;
}

void DirectPath::connect(std::span<const EndInfo> peers) {
    const GidEntry gid = choose_gid(device_, gid_);
    const ibv_port_attr port = device_.query_port();
    const std::vector<EndInfo> own = own_ends();
    PathAttributes path = measured_path(mtu_);
    path.max_rd_atomic = path.max_dest_rd_atomic =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(16, device_.limits().rd_atomic_max));
    for (unsigned index = 0; index < ends_.size(); ++index) {
        ends_[index].remote = peers[index].memory;
        if (transport_ == QpType::ud) {
            connect_datagrams(index, peers[index], gid);
            continue;
        }
        ibv_qp* qp = requests_[index]->qp.get();
        Transition rtr = to_rtr(peers[index].qp, path, device_.port(), static_cast<std::uint8_t>(gid.index),
                                port.active_mtu, transport_);
        device_.modify(qp, rtr.attr, rtr.mask);
        Transition rts = to_rts(own[index].qp.psn, path, transport_);
        device_.modify(qp, rts.attr, rts.mask);
    }
}

void DirectPath::connect_datagrams(unsigned index, const EndInfo& peer, const GidEntry& gid) {
    Requests& requests = *requests_[index];
    ibv_ah_attr address = to_address(peer.qp, PathAttributes{}, device_.port(), static_cast<std::uint8_t>(gid.index));
    requests.ah = UniqueAh(device_.create_ah(pd_.get(), address), {&device_});
    requests.peer_qp_num = peer.qp.qp_num;
    requests.peer_qkey = peer.qp.qkey;
    Transition rtr = to_state(IBV_QPS_RTR);
    device_.modify(requests.qp.get(), rtr.attr, rtr.mask);
    Transition rts = to_rts(0, PathAttributes{}, QpType::ud);
    device_.modify(requests.qp.get(), rts.attr, rts.mask);
}

std::vector<std::byte> DirectPath::connect(unsigned end, const std::string& address,
                                           const std::vector<std::byte>& private_data,
                                           std::chrono::milliseconds timeout) {
    if (!link_) {
        link_ = std::make_unique<DirectLink>(device_);
    }
    return link_->connect(requests_[end]->qp.get(), address, private_data, timeout);
}

std::string DirectPath::listen(const std::string& address) {
    link_ = std::make_unique<DirectLink>(device_);
    return link_->listen(address);
}

std::optional<PeerRequest> DirectPath::next_request(std::chrono::milliseconds timeout) {
    return link_->next_request(timeout);
}
void DirectPath::accept(unsigned end, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout) {
    link_->accept(requests_[end]->qp.get(), private_data, timeout);
}
void DirectPath::reject(const std::vector<std::byte>& private_data) {
    link_->reject(private_data);
}
bool DirectPath::peer_left() {
    return link_ && link_->peer_left();
}
void DirectPath::disconnect(std::chrono::milliseconds timeout) {
    if (link_) {
        link_->disconnect(timeout);
    }
}

void DirectPath::prepare(const Workload& workload) {
    workload_ = workload;
    send_flags_ = workload.inlined ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u;
    changing_ = layout_.out_slots > 1 || workload.op == Op::compare_swap;
    for (unsigned index = 0; index < ends_.size(); ++index) {
        Requests& requests = *requests_[index];
        ends_[index].until_signal = workload.signal_every;
        for (std::size_t i = 0; i < requests.sends.size(); ++i) {
            build(workload.op, index, requests.sends[i], requests.send_sges[i]);
        }
        chain(requests, std::min<std::uint32_t>(workload.post_list, static_cast<std::uint32_t>(requests.sends.size())));
    }
}

void DirectPath::chain(Requests& requests, std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; ++i) {
        requests.sends[i].next = i + 1 < n ? &requests.sends[i + 1] : nullptr;
    }
    requests.chained = n;
}

void DirectPath::build(Op op, unsigned index, ibv_send_wr& wr, ibv_sge& sge) const {
    const EndState& state = ends_[index];
    sge = {.addr = reinterpret_cast<std::uintptr_t>(state.memory + layout_.out(0)),
           .length = is_atomic(op) ? kAtomicSize : workload_.size,
           .lkey = mr_->lkey};
    wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    const auto at_remote = [&](ibv_wr_opcode opcode) {
        wr.opcode = opcode;
        wr.wr.rdma.remote_addr = state.remote.addr;
        wr.wr.rdma.rkey = state.remote.rkey;
    };
    const auto on_remote = [&](ibv_wr_opcode opcode, std::uint64_t operand) {
        wr.opcode = opcode;
        wr.wr.atomic.remote_addr = state.remote.addr;
        wr.wr.atomic.rkey = state.remote.rkey;
        wr.wr.atomic.compare_add = operand;
    };
    switch (op) {
        case Op::send: wr.opcode = IBV_WR_SEND; break;
        case Op::write: at_remote(IBV_WR_RDMA_WRITE); break;
        case Op::write_imm: at_remote(IBV_WR_RDMA_WRITE_WITH_IMM); break;
        case Op::read: at_remote(IBV_WR_RDMA_READ); break;
        case Op::fetch_add: on_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, 1); break;
        case Op::compare_swap: on_remote(IBV_WR_ATOMIC_CMP_AND_SWP, 0); break;
    }
    if (transport_ == QpType::ud) {
        const Requests& requests = *requests_[index];
        wr.wr.ud = {.ah = requests.ah.get(), .remote_qpn = requests.peer_qp_num, .remote_qkey = requests.peer_qkey};
    }
}

void DirectPath::post_once(Op op, unsigned end) {
    ibv_send_wr wr{};
    ibv_sge sge{};
    build(op, end, wr, sge);
    wr.wr_id = RequestId::send(end, ends_[end].issued);
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(requests_[end]->qp.get(), &wr, &bad); error != 0) {
        fail_post(end, "ibv_post_send", error);
    }
    ++ends_[end].issued;
    ++send_doorbells_;
}

std::string DirectPath::name_of(unsigned index) const {
    return fmt::format("queue pair {} (end {} of {})", requests_[index]->qp->qp_num, index + 1, ends_.size());
}

void DirectPath::look_after_peer(unsigned index, const char* what) {
    if (peer_left()) {
        throw MeasurementError(fmt::format("path {}, {}: the peer left while {} waited for {}", own_name(),
                                           op_name(workload_.op), name_of(index), what));
    }
}

std::string DirectPath::stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const {
    const EndState& state = ends_[index];
    return fmt::format("path {}, {}: {} has waited {} ms for {} (posted {}, completed {}, received {}, now message {})",
                       own_name(), op_name(workload_.op), name_of(index), timeout.count(), what, state.issued,
                       state.completed, state.received, state.sequence);
}

void DirectPath::fail_post(unsigned index, const char* call, int error) {
    throw MeasurementError(fmt::format("path {}, {} of {} bytes: {} on {} failed: {}", own_name(),
                                       op_name(workload_.op), workload_.size, call, name_of(index),
                                       std::strerror(error)));
}

void DirectPath::fail_completion(const ibv_wc& first) {
    ibv_wc wc = first;
    // A request that was flushed does not say why. The request that has failed may complete a little later.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (wc.status == IBV_WC_WR_FLUSH_ERR && std::chrono::steady_clock::now() < deadline) {
        ibv_wc next{};
        if (ibv_poll_cq(cq_.get(), 1, &next) == 1 && next.status != IBV_WC_SUCCESS &&
            next.status != IBV_WC_WR_FLUSH_ERR) {
            wc = next;
        }
    }
    const RequestId id{wc.wr_id};
    throw MeasurementError(fmt::format(
        "path {}, {} of {} bytes, after {} requests: {} of {} completed with {} "
        "({}), vendor code {:#x}{}",
        own_name(), op_name(workload_.op), workload_.size, ends_[id.end()].issued,
        id.is_receive() ? "a receive" : "a request", name_of(id.end()), status_name(static_cast<Status>(wc.status)),
        status_text(static_cast<Status>(wc.status)), wc.vendor_err, peer_left() ? "; the peer left" : ""));
}

void DirectPath::fail_poll(int result) {
    throw MeasurementError(
        fmt::format("path {}: ibv_poll_cq on {} failed: {}", own_name(), device_.describe(), result));
}

}  // namespace pollcore::perf
