// The set-up of the runtime's path, and its error messages.
#include "pollperf/paths/runtime_path.hpp"

#include <algorithm>
#include <bit>
#include <thread>

#include <fmt/format.h>

namespace pollcore::perf {

RuntimePath::RuntimePath(Context& runtime, const std::string& device, const PathSetup& setup, PathKind kind)
    : kind_(kind),
      runtime_(runtime),
      device_(device),
      layout_(setup.layout),
      transport_(setup.transport),
      mtu_(setup.mtu),
      memory_(runtime.allocate(setup.layout.bytes() * setup.ends, Access::all(), device)),
      wait_(setup.wait),
      repost_batch_(repost_batch(setup.layout.receive_slots)),
      ends_(setup.ends),
      requests_(setup.ends) {
    const bool ring = arrival_of(setup.flow) == Arrival::write_ring;
    const std::uint32_t ends_each = (setup.ends + setup.sessions - 1) / setup.sessions;
    // Room for all requests of the ends, so that none has to be refused.
    const std::uint32_t slots =
        std::bit_ceil(std::max<std::uint32_t>(1024, ends_each * (setup.send_depth + layout_.receive_slots)));
    for (unsigned i = 0; i < setup.sessions; ++i) {
        sessions_.push_back(runtime.open_session({.worker = setup.workers[i % setup.workers.size()],
                                                  .submission_slots = std::min(slots, kRingSlotsMax),
                                                  .completion_slots = std::min(slots, kRingSlotsMax),
                                                  .pool_buffers = ring ? ends_each * (layout_.receive_slots + 1) : 0,
                                                  .events = setup.wait == Waiting::sleep,
                                                  .wait_spin = std::chrono::nanoseconds(0)}));
    }
    for (unsigned index = 0; index < setup.ends; ++index) {
        create_end(index, setup);
    }
}

void RuntimePath::create_end(unsigned index, const PathSetup& setup) {
    Requests& requests = requests_[index];
    EndState& state = ends_[index];
    requests.session = &sessions_[index % sessions_.size()];
    const bool ring = arrival_of(setup.flow) == Arrival::write_ring;
    if (ring) {
        // Room for the messages that the program has not released, and for a batch of messages on their way.
        const std::uint64_t bytes =
            std::bit_ceil((layout_.receive_slots + std::uint64_t{repost_batch_}) * (layout_.size + 2 * kCacheLine));
        requests.ring =
            runtime_.create_write_ring({.device = device_,
                                        .session = requests.session,
                                        .bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 1u << 31)),
                                        .messages = layout_.receive_slots});
        requests.records.resize(layout_.receive_slots);
    }
    qps_.push_back(
        runtime_.create_queue_pair({.type = setup.transport,
                                    .qkey = setup.transport == QpType::ud ? kQkey : 0,
                                    .device = device_,
                                    .shares = {{.session = requests.session, .send_depth = setup.send_depth}},
                                    .recv_depth = layout_.receive_slots,
                                    .pool = ring ? &requests.ring : nullptr,
                                    .inline_max = setup.inline_max,
                                    .remote_access = setup.transport == QpType::rc   ? RemoteAccess::all()
                                                     : setup.transport == QpType::uc ? RemoteAccess{.write = true}
                                                                                     : RemoteAccess{},
                                    .flow = setup.flow}));
    state.memory = memory_.data() + index * layout_.bytes();
    requests.sends.resize(setup.post_list);
    if (ring) {
        state.reposted = layout_.receive_slots;
        return;
    }
    requests.receives.resize(layout_.receive_slots);
    for (std::uint32_t slot = 0; slot < layout_.receive_slots; ++slot) {
        WorkRequest& receive = requests.receives[slot];
        receive.tag = RequestId::receive(index);
        receive.sge = {.addr = memory_.addr() + index * layout_.bytes() + layout_.receive(slot),
                       .length = layout_.receive_length(),
                       .lkey = memory_.lkey()};
        receive.qp = qps_[index].handle();
        receive.opcode = Opcode::recv;
        receive.num_sge = 1;
    }
    while (state.reposted < layout_.receive_slots) {
        repost(index);
    }
}

std::vector<EndInfo> RuntimePath::own_ends() const {
    std::vector<EndInfo> infos(ends_.size());
    for (unsigned index = 0; index < ends_.size(); ++index) {
        infos[index].qp = qps_[index].info();
        infos[index].memory = {memory_.addr() + index * layout_.bytes() + layout_.in(0), memory_.rkey()};
    }
    return infos;
}

void RuntimePath::connect(std::span<const EndInfo> peers) {
    for (unsigned index = 0; index < ends_.size(); ++index) {
        requests_[index].peer = peers[index];
        ends_[index].remote = peers[index].memory;
        if (transport_ == QpType::ud) {
            requests_[index].ah = runtime_.create_address_handle(peers[index].qp, measured_path(), device_);
        } else {
            qps_[index].connect(peers[index].qp, measured_path(mtu_));
        }
    }
}

std::vector<std::byte> RuntimePath::connect(unsigned end, const std::string& address,
                                            const std::vector<std::byte>& private_data,
                                            std::chrono::milliseconds timeout) {
    auto answer =
        qps_[end].connect(address, {.path = measured_path(mtu_), .private_data = private_data, .timeout = timeout});
    over_network_ = true;
    return answer;
}

std::string RuntimePath::listen(const std::string& address) {
    listener_ = runtime_.listen(address, device_);
    return listener_.address();
}

std::optional<PeerRequest> RuntimePath::next_request(std::chrono::milliseconds timeout) {
    request_ = listener_.next_request(timeout);
    if (!request_) {
        return std::nullopt;
    }
    return PeerRequest{request_->peer(), request_->private_data()};
}

void RuntimePath::accept(unsigned end, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout) {
    request_->accept(qps_[end], {.path = measured_path(mtu_), .private_data = private_data, .timeout = timeout});
    request_.reset();
    over_network_ = true;
}

void RuntimePath::reject(const std::vector<std::byte>& private_data) {
    request_->reject(private_data);
    request_.reset();
}

bool RuntimePath::peer_left() const {
    return over_network_ &&
           std::any_of(qps_.begin(), qps_.end(), [](const QueuePair& qp) { return qp.disconnected(); });
}

void RuntimePath::disconnect(std::chrono::milliseconds timeout) {
    if (!over_network_) {
        return;
    }
    for (QueuePair& qp : qps_) {
        qp.disconnect();
    }
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!std::all_of(qps_.begin(), qps_.end(), [](const QueuePair& qp) { return qp.disconnected(); }) &&
           std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void RuntimePath::hand_over() noexcept {
    for (Session& session : sessions_) {
        session.hand_over();
    }
}

void RuntimePath::prepare(const Workload& workload) {
    workload_ = workload;
    flags_ = workload.inlined ? static_cast<std::uint8_t>(kInline) : std::uint8_t{0};
    awaits_memory_ = workload.op == Op::write && !workload.one_sided;
    changing_ = layout_.out_slots > 1 || workload.op == Op::compare_swap;
    for (unsigned index = 0; index < ends_.size(); ++index) {
        ends_[index].until_signal = workload.signal_every;
        // The library copies inline bytes, so it needs the address in this process.
        requests_[index].source = workload.inlined ? reinterpret_cast<std::uintptr_t>(ends_[index].memory)
                                                   : memory_.addr() + index * layout_.bytes();
        for (WorkRequest& request : requests_[index].sends) {
            build(workload.op, index, request);
        }
    }
}

void RuntimePath::build(Op op, unsigned index, WorkRequest& request) const {
    const EndState& state = ends_[index];
    request = {};
    request.sge = {.addr = requests_[index].source + layout_.out(0),
                   .length = is_atomic(op) ? kAtomicSize : workload_.size,
                   .lkey = memory_.lkey()};
    request.num_sge = 1;
    request.qp = qps_[index].handle();
    request.remote_addr = state.remote.addr;
    request.rkey = state.remote.rkey;
    switch (op) {
        case Op::send: request.opcode = Opcode::send; break;
        case Op::write: request.opcode = Opcode::rdma_write; break;
        case Op::write_imm: request.opcode = Opcode::rdma_write_with_imm; break;
        case Op::read: request.opcode = Opcode::rdma_read; break;
        case Op::fetch_add:
            request.opcode = Opcode::atomic_fetch_and_add;
            request.compare_add = 1;
            break;
        case Op::compare_swap: request.opcode = Opcode::atomic_cmp_and_swp; break;
    }
    if (transport_ == QpType::ud) {
        const Requests& requests = requests_[index];
        request.ud = {requests.ah.handle(), requests.peer.qp.qp_num};
        request.remote_qkey = requests.peer.qp.qkey;
    }
}

void RuntimePath::post_once(Op op, unsigned end) {
    WorkRequest request;
    build(op, end, request);
    request.sge.addr = memory_.addr() + end * layout_.bytes() + layout_.out(0);
    request.flags = kSignaled;
    request.tag = RequestId::send(end, ends_[end].issued);
    if (const Refusal refusal = requests_[end].session->try_submit(request); refusal != Refusal::none) {
        fail_submit(end, refusal);
    }
    ++ends_[end].issued;
}

void RuntimePath::wait_a_while(std::chrono::nanoseconds patience) noexcept {
    if (wait_ == Waiting::sleep && !awaits_memory_) {
        (void)sessions_.front().wait(std::min<std::chrono::nanoseconds>(patience, Watch::kSleepMax));
    } else {
        (void)::sched_yield();
    }
}

unsigned RuntimePath::end_of(QpHandle qp) const noexcept {
    // Only with write rings, which are for a few queue pairs.
    const auto at = std::find_if(qps_.begin(), qps_.end(), [&](const QueuePair& one) { return one.handle() == qp; });
    return static_cast<unsigned>(at - qps_.begin());
}

void RuntimePath::give_records_back(unsigned index) {
    EndState& state = ends_[index];
    Requests& requests = requests_[index];
    const std::span<const Completion> batch(&requests.records[state.reposted % layout_.receive_slots], repost_batch_);
    if (const Submitted released = requests.session->release(batch); released.refusal != Refusal::none) {
        fail_submit(index, released.refusal);
    }
    state.reposted += repost_batch_;
}

void RuntimePath::take_back(unsigned index, const Submitted& submitted, std::uint32_t until_signal) {
    if (!retryable(submitted.refusal)) {
        fail_submit(index, submitted.refusal);
    }
    // The requests that were taken count down again, as issue() has done.
    EndState& state = ends_[index];
    state.until_signal = until_signal;
    for (std::size_t i = 0; i < submitted.accepted; ++i) {
        const bool signaled = (requests_[index].sends[i].flags & kSignaled) != 0;
        state.until_signal = signaled ? workload_.signal_every : state.until_signal - 1;
    }
}

std::uint64_t RuntimePath::send_doorbells() const {
    std::uint64_t sum = 0;
    for (std::size_t worker = 0; worker < runtime_.worker_count(); ++worker) {
        sum += runtime_.worker_counters(worker).send_doorbells.value();
    }
    return sum;
}

std::uint64_t RuntimePath::receive_doorbells() const {
    std::uint64_t sum = 0;
    for (std::size_t worker = 0; worker < runtime_.worker_count(); ++worker) {
        sum += runtime_.worker_counters(worker).receive_doorbells.value();
    }
    return sum;
}

StageLatency RuntimePath::stage_latency() const noexcept {
    StageLatency all;
    for (const Session& session : sessions_) {
        all += session.stage_latency();
    }
    return all;
}

std::string RuntimePath::name_of(unsigned index) const {
    return fmt::format("queue pair {} (end {} of {})", qps_[index].qp_num(), index + 1, ends_.size());
}

void RuntimePath::look_after_peer(unsigned index, const char* what) {
    if (peer_left()) {
        throw MeasurementError(fmt::format("path {}, {}: the peer left while {} waited for {}", path_name(kind_),
                                           op_name(workload_.op), name_of(index), what));
    }
}

std::string RuntimePath::stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const {
    const EndState& state = ends_[index];
    return fmt::format(
        "path {}, {}: {} has waited {} ms for {} (submitted {}, completed {}, received {}, now message {})",
        path_name(kind_), op_name(workload_.op), name_of(index), timeout.count(), what, state.issued, state.completed,
        state.received, state.sequence);
}

void RuntimePath::fail_submit(unsigned index, Refusal refusal) {
    std::string cause;
    if (refusal == Refusal::qp_in_error) {
        cause = fmt::format(" ({})", status_name(requests_[index].session->cause(qps_[index].handle())));
    }
    throw MeasurementError(fmt::format("path {}, {} of {} bytes, message {}: {} refused a request: {}{}",
                                       path_name(kind_), op_name(workload_.op), workload_.size, ends_[index].sequence,
                                       name_of(index), refusal_name(refusal), cause));
}

void RuntimePath::fail_completion(const Completion& completion) {
    const unsigned index = end_of(completion.qp);
    // A request that was flushed does not say why.
    const Status cause = requests_[index].session->cause(completion.qp);
    const bool other = cause != completion.status && cause != Status::success && cause != Status::qp_closed;
    throw MeasurementError(fmt::format(
        "path {}, {} of {} bytes, after {} requests: {} of {} completed with {} ({}), vendor code {:#x}{}{}",
        path_name(kind_), op_name(workload_.op), workload_.size, ends_[index].issued,
        completion.from_recv_queue() ? "a receive" : "a request", name_of(index), status_name(completion.status),
        status_text(completion.status), completion.vendor_err,
        other ? fmt::format("; the queue pair had failed with {}", status_name(cause)) : "",
        peer_left() ? "; the peer left" : ""));
}

}  // namespace pollcore::perf
