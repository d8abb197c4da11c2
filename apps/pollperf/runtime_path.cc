// The set-up of the runtime's path, and its error messages.
#include "runtime_path.hpp"

#include <bit>
#include <cstring>
#include <thread>

#include <fmt/format.h>

namespace pollcore::perf {

RuntimePath::RuntimePath(Context& runtime, const std::function<int(std::uint32_t)>& worker_thread,
                         const std::string& device, const std::string& worker, const PathSetup& setup)
    : runtime_(runtime),
      device_(device),
      layout_(setup.layout),
      ends_used_(setup.ends),
      memory_(runtime.allocate(setup.layout.bytes() * setup.ends, Access::all(), device)),
      session_(runtime.open_session(
          {.worker = worker,
           .pool_buffers = arrival_of(setup.flow) == Arrival::write_ring ? 2 * (kReceiveSlots + 1) : 0,
           .events = setup.wait == Waiting::sleep,
           .wait_spin = std::chrono::nanoseconds(0)})),
      worker_thread_(worker_thread(session_.worker())),
      wait_(setup.wait) {
    for (unsigned index = 0; index < setup.ends; ++index) {
        const bool ring = arrival_of(setup.flow) == Arrival::write_ring;
        if (ring) {
            // Room for the messages that the program has not released, and for a batch of messages on their way.
            const std::uint64_t bytes =
                std::bit_ceil((kReceiveSlots + std::uint64_t{kRepostBatch}) * (setup.layout.size + 2 * kCacheLine));
            rings_[index] = runtime.create_write_ring(
                {.device = device,
                 .session = &session_,
                 .bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 1u << 31)),
                 .messages = kReceiveSlots});
        }
        qps_[index] = runtime.create_queue_pair({.device = device,
                                                 .shares = {{.session = &session_, .send_depth = kSendDepth}},
                                                 .recv_depth = kReceiveSlots,
                                                 .pool = ring ? &rings_[index] : nullptr,
                                                 .inline_max = setup.inline_max,
                                                 .remote_access = RemoteAccess::all(),
                                                 .flow = setup.flow});
        EndState& state = ends_[index];
        state.memory = memory_.data() + index * layout_.bytes();
        if (ring) {
            state.reposted = kReceiveSlots;
        }
        for (std::uint32_t slot = 0; slot < kReceiveSlots; ++slot) {
            WorkRequest& receive = receives_[index][slot];
            receive.tag = index;
            receive.sge = {.addr = memory_.addr() + index * layout_.bytes() + layout_.slot(slot),
                           .length = layout_.size,
                           .lkey = memory_.lkey()};
            receive.qp = qps_[index].handle();
            receive.opcode = Opcode::recv;
            receive.num_sge = 1;
        }
        while (state.reposted < kReceiveSlots) {
            repost(index);
        }
    }
}

void RuntimePath::connect_ends() {
    const QpInfo near = qps_[kNear].info();
    const QpInfo far = qps_[kFar].info();
    qps_[kNear].connect(far);
    qps_[kFar].connect(near);
}

std::vector<std::byte> RuntimePath::connect(const std::string& address, const std::vector<std::byte>& private_data,
                                            std::chrono::milliseconds timeout) {
    auto answer = qps_[kNear].connect(address, {.private_data = private_data, .timeout = timeout});
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

void RuntimePath::accept(const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout) {
    request_->accept(qps_[kNear], {.private_data = private_data, .timeout = timeout});
    over_network_ = true;
}

void RuntimePath::reject(const std::vector<std::byte>& private_data) {
    request_->reject(private_data);
    request_.reset();
}

void RuntimePath::disconnect(std::chrono::milliseconds timeout) {
    qps_[kNear].disconnect();
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!qps_[kNear].disconnected() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

RemoteBlock RuntimePath::own_block(unsigned index) const {
    return {memory_.addr() + index * layout_.bytes() + layout_.in(), memory_.rkey()};
}

void RuntimePath::prepare(const Workload& workload) {
    workload_ = workload;
    inlined_ = workload.inlined;
    awaits_memory_ = workload.op == Op::write && !workload.one_sided;
    always_signal_ = workload.one_sided || workload.buffer_reused();
    for (unsigned index = 0; index < ends_used_; ++index) {
        for (WorkRequest& request : sends_[index]) {
            build(workload.op, index, request);
        }
        sends_[index][true].flags = kSignaled;
    }
}

void RuntimePath::build(Op op, unsigned index, WorkRequest& request) const {
    request = {};
    request.tag = index;
    request.sge = {.addr = memory_.addr() + index * layout_.bytes() + EndLayout::out(),
                   .length = op == Op::fetch_add ? kAtomicSize : workload_.size,
                   .lkey = memory_.lkey()};
    request.num_sge = 1;
    request.qp = qps_[index].handle();
    request.remote_addr = ends_[index].remote.addr;
    request.rkey = ends_[index].remote.rkey;
    switch (op) {
        case Op::send: request.opcode = Opcode::send; break;
        case Op::write: request.opcode = Opcode::rdma_write; break;
        case Op::read: request.opcode = Opcode::rdma_read; break;
        case Op::fetch_add:
            request.opcode = Opcode::atomic_fetch_and_add;
            request.compare_add = 1;
            break;
    }
}

void RuntimePath::post_once(Op op) {
    WorkRequest request;
    build(op, kNear, request);
    request.flags = kSignaled;
    if (const Refusal refusal = session_.try_submit(request); refusal != Refusal::none) {
        fail_submit(kNear, refusal);
    }
    ++ends_[kNear].issued;
    ++ends_[kNear].signaled;
}

void RuntimePath::give_records_back(unsigned index) {
    EndState& state = ends_[index];
    const std::span<const Completion> batch(&records_[index][state.reposted % kReceiveSlots], kRepostBatch);
    if (const Submitted released = session_.release(batch); released.refusal != Refusal::none) {
        fail_submit(index, released.refusal);
    }
    state.reposted += kRepostBatch;
}

std::string RuntimePath::name_of(unsigned index) const {
    return fmt::format("queue pair {}{}", qps_[index].qp_num(),
                       ends_used_ == 2 ? (index == kNear ? " (first end)" : " (second end)") : "");
}

void RuntimePath::look_after_peer(unsigned index, const char* what) {
    if (peer_left()) {
        throw MeasurementError(fmt::format("path runtime, {}: the peer left while {} waited for {}",
                                           op_name(workload_.op), name_of(index), what));
    }
}

std::string RuntimePath::stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const {
    const EndState& state = ends_[index];
    return fmt::format(
        "path runtime, {}: {} has waited {} ms for {} (submitted {}, signaled {}, completed {}, "
        "received {}, now message {})",
        op_name(workload_.op), name_of(index), timeout.count(), what, state.issued, state.signaled, state.completed,
        state.received, state.sequence);
}

void RuntimePath::fail_submit(unsigned index, Refusal refusal) {
    std::string cause;
    if (refusal == Refusal::qp_in_error) {
        cause = fmt::format(" ({})", status_name(session_.cause(qps_[index].handle())));
    }
    throw MeasurementError(fmt::format("path runtime, {} of {} bytes, message {}: {} refused a request: {}{}",
                                       op_name(workload_.op), workload_.size, ends_[index].sequence, name_of(index),
                                       refusal_name(refusal), cause));
}

void RuntimePath::fail_completion(const Completion& completion) {
    const unsigned index = end_of(completion);
    throw MeasurementError(fmt::format(
        "path runtime, {} of {} bytes, after {} requests: {} of {} completed with {} "
        "({}), vendor code {:#x}{}",
        op_name(workload_.op), workload_.size, ends_[index].issued,
        completion.from_recv_queue() ? "a receive" : "a request", name_of(index), status_name(completion.status),
        status_text(completion.status), completion.vendor_err, peer_left() ? "; the peer left" : ""));
}

}  // namespace pollcore::perf
