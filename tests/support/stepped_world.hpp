// A worker, a software device (or another device) and sessions in one thread. The test moves each of them by hand.
//
// The test does the work of a runtime's control side, through the runtime's own WorkerProxy. While a command awaits its
// answer, the proxy steps the worker, or calls Options::wait. The test sets the device's clock.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/event_fd.hpp"
#include "base/life.hpp"
#include "connect/transitions.hpp"
#include "device/soft/soft_device.hpp"
#include "flow/flow_kind.hpp"
#include "flow/shared_grants.hpp"
#include "pollcore/session.hpp"
#include "session/session_core.hpp"
#include "worker/ring_pool.hpp"
#include "worker/worker.hpp"
#include "worker/worker_proxy.hpp"

namespace pollcore::testing {

class SteppedWorld {
public:
    struct Options {
        WorkerOptions worker;
        std::uint32_t submission_slots = 64;
        std::uint32_t completion_slots = 64;
        bool wide_completions = false;
        std::uint32_t pool_buffers = 0;  ///< pool buffers that each session may have
        bool extended_cqs = false;       ///< true: CQs are polled by ibv_start_poll
        bool next_poll = true;           ///< false: ibv_next_poll is not called
        bool provider_lines = true;      ///< false: the worker prefetches no provider memory before a burst
        /// If true, CQs have time stamps, and the first session asks for them. Needs wide_completions and extended_cqs.
        bool device_time = false;
        bool shared_cqs = false;        ///< WorkerCq::Options::shared
        bool sleeps = false;            ///< whether the worker and the applications may sleep
        ClientShare* client = nullptr;  ///< the process that owns the sessions; null: this process
        /// Called while a command awaits its answer. If empty, the worker makes a step instead.
        std::function<void()> wait{};
        SoftDeviceOptions device;
        std::function<std::unique_ptr<Device>()>
            open{};  ///< opens another device, which moves by itself; empty: the software device
    };

    struct NoHost final : SessionHost {
        bool has_queue_pair(QpHandle) const noexcept override { return false; }
        void close_session(std::uint32_t) noexcept override {}
        void release_session(std::uint32_t) noexcept override {}
    };

    struct End {
        SessionLayout layout;
        void* block = nullptr;
        std::unique_ptr<WorkerSession> worker_end;
        UniqueFd application_fd;
        Session session;
        ~End() {
            session = Session();
            ::operator delete (block, std::align_val_t{kCacheLine});
        }
    };

    struct Qp {
        UniqueAh marker_ah;
        UniqueQp qp;
        std::unique_ptr<WorkerQp> end;
        std::uint32_t psn = 0;
        ControlBlock* block = nullptr;  ///< null: the queue pair has no flow control
        std::uint32_t block_rkey = 0;
        [[nodiscard]] QpHandle handle() const { return end->handle(); }
        [[nodiscard]] Flow& flow() const { return end->flow(); }
    };

    struct Srq {
        UniqueSrq srq;
        std::unique_ptr<WorkerSrq> end;
        std::unique_ptr<SharedGrants> grants;  ///< null: the queue has no credits
        [[nodiscard]] SrqHandle handle() const { return end->handle(); }
    };

    struct Buffer {
        OwnLines<std::byte> memory;
        ibv_mr* mr = nullptr;
        [[nodiscard]] std::byte* data(std::size_t at = 0) { return memory.data() + at; }
        [[nodiscard]] std::uint64_t addr(std::size_t at = 0) const {
            return reinterpret_cast<std::uintptr_t>(memory.data()) + at;
        }
        [[nodiscard]] std::uint32_t lkey() const { return mr->lkey; }
        [[nodiscard]] std::uint32_t rkey() const { return mr->rkey; }
        [[nodiscard]] Sge sge(std::uint32_t length, std::size_t at = 0) const { return {addr(at), length, mr->lkey}; }
    };

    struct Pool {
        OwnLines<std::byte> memory;
        std::unique_ptr<BufferPool> buffers;
        std::unique_ptr<RingPool> ring;  ///< used if `buffers` is null
        [[nodiscard]] WorkerPool& end() const {
            return buffers != nullptr ? static_cast<WorkerPool&>(*buffers) : *ring;
        }
        [[nodiscard]] PoolHandle handle() const { return end().handle(); }
        [[nodiscard]] const ReceivePoolCounters& counters() const { return end().counters(); }
        [[nodiscard]] std::byte* buffer(std::uint32_t index) {
            return memory.data() + std::size_t{index} * buffers->memory().stride;
        }
    };
    struct PoolPart {
        Pool* pool = nullptr;
        std::uint32_t depth = 16;  ///< receives that the worker keeps posted
        std::uint32_t share = 32;
    };

    struct SrqShape {
        std::uint32_t session = 0;
        std::uint32_t depth = 16;
        std::uint32_t sges_max = 4;
        Pool* pool = nullptr;
        std::uint32_t pool_share = 32;
        std::uint32_t credit_connections = 0;
    };

    struct Window {
        UniqueMw mw;
        std::unique_ptr<WorkerWindow> end;
        [[nodiscard]] MwHandle handle() const { return end->options().handle; }
    };

    struct QpShape {
        std::vector<ShareOptions> shares{{0, 16, 16}};
        std::uint32_t sges_max = 4;
        std::uint16_t inline_max = 64;
        std::uint32_t send_cq = 0;
        std::uint32_t recv_cq = 0;
        QpType type = QpType::rc;
        OpcodeMask opcodes = opcodes_of(QpType::rc);  ///< used for RC and UC; a UD queue pair has its own
        Srq* srq = nullptr;
        PoolPart pool{};
        FlowControl flow = FlowControl::off;
        PoolPart rendezvous{};
        std::uint32_t pd = 0;  ///< the number that the control thread gave the protection domain
        bool ordinary = true;  ///< WorkerQp::Options::ordinary
        bool coalesce_signals = false;
        SendQueueLines provider_lines{};   ///< if set, used in place of the lines that the device reports
        std::optional<FlowTerms> terms{};  ///< if set, the terms to announce; they may be untrue
        std::uint32_t counts_from = 0;     ///< FlowParts::counts_from
    };
    static constexpr std::uint32_t kQkey = 0x77;  ///< the qkey of all UD queue pairs

    SteppedWorld() : SteppedWorld(Options{}) {}
    explicit SteppedWorld(Options options)
        : options_(prepare(std::move(options))),
          device(options_.open ? options_.open() : open_soft_device(options_.device)),
          worker(options_.worker),
          proxy(worker, "stepped", counters, [this](std::uint32_t) { options_.wait ? options_.wait() : void(step()); }),
          domain_(device->create_thread_domain()),
          pd_(device->create_pd(), {device.get()}) {
        if (options_.sleeps) {
            channel = device->create_channel(domain_.get());
            worker.add_channel(*channel);
        }
    }

    ~SteppedWorld() {
        qps.clear();
        srqs.clear();
        worker.acknowledge_events();
        cqs_.clear();
        windows_.clear();
        regions_.clear();
    }

    [[nodiscard]] SoftDevice& soft() { return dynamic_cast<SoftDevice&>(*device); }

    std::uint32_t step(int n = 1) {
        std::uint32_t work = 0;
        for (int i = 0; i < n; ++i) {
            work += worker.step(now);
        }
        return work;
    }

    // Each function returns whether the worker finds the object in use.
    bool uses_key(std::uint32_t device_index, std::uint32_t pd, std::uint32_t lkey, MrHandle region = {},
                  std::uint32_t client = 0) {
        return found(proxy.begin_finding_key(device_index, pd, lkey, region, client));
    }
    bool uses_window(MwHandle window) { return found(proxy.begin_finding_window(window)); }
    bool uses_ah(const WorkerAh& ah) { return found(proxy.begin_finding_ah(ah)); }
    bool remove_ah(const WorkerAh& ah) { return found(proxy.begin_removing_ah(ah)); }
    bool found(std::uint64_t search) {
        for (;;) {
            if (const std::optional<bool> found = proxy.found(search)) {
                return *found;
            }
            options_.wait ? options_.wait() : void(step());
        }
    }

    std::uint32_t add_session() { return add_session(options_.client); }
    std::uint32_t add_session(ClientShare* client) {
        auto end = std::make_unique<End>();
        end->layout = {options_.worker.qps_max,   options_.submission_slots, options_.completion_slots,
                       options_.wide_completions, options_.sleeps,           options_.pool_buffers};
        end->block = ::operator new (end->layout.bytes(), std::align_val_t{kCacheLine});
        std::memset(end->block, 0, end->layout.bytes());
        format_session(end->block, end->layout);
        if (options_.sleeps) {
            end->application_fd = make_event_fd("a test");
        }
        end->worker_end = std::make_unique<WorkerSession>(
            end->block, end->layout,
            WorkerSession::Options{.id = static_cast<std::uint32_t>(ends.size()) + 1,
                                   .client = client,
                                   .application_fd = end->application_fd.get(),
                                   .device_time = options_.device_time && ends.empty()});
        const auto index = static_cast<std::uint32_t>(ends.size());
        proxy.add_session(index, *end->worker_end);
        end->session = Session(std::make_unique<SessionCore>(
            std::make_shared<NoHost>(), end->block, end->layout,
            SessionCore::Options{
                .id = index + 1,
                .waking = {options_.worker.bell, end->application_fd.get(), std::chrono::nanoseconds(0)}}));
        ends.push_back(std::move(end));
        return index;
    }
    Session& session(std::uint32_t index = 0) { return ends[index]->session; }
    WorkerCq& cq(std::uint32_t index) { return *cqs_[index]; }

    std::uint32_t add_cq(std::uint32_t cqe = 1024) {
        verbs_cqs_.emplace_back(device->create_cq({.cqe = cqe,
                                                   .domain = domain_.get(),
                                                   .channel = channel != nullptr ? channel->verbs() : nullptr,
                                                   .extended = options_.extended_cqs,
                                                   .device_time = options_.device_time}),
                                DeviceDeleter<ibv_cq>{device.get()});
        ibv_cq* const verbs_cq = verbs_cqs_.back().get();
        auto cq = std::make_unique<WorkerCq>(
            WorkerCq::Options{.cq = verbs_cq,
                              .extended = options_.extended_cqs ? extended(verbs_cq) : nullptr,
                              .next_poll = options_.next_poll && device->limits().next_poll,
                              .device_time = options_.device_time,
                              .shared = options_.shared_cqs,
                              .depth = cqe,
                              .channel = channel.get()});
        const auto index = static_cast<std::uint32_t>(cqs_.size());
        proxy.add_cq(index, *cq);
        cqs_.push_back(std::move(cq));
        return index;
    }

    Pool& add_pool(std::uint32_t buffers, std::uint32_t bytes, std::uint32_t session_index = 0) {
        auto pool = std::make_unique<Pool>();
        const std::uint32_t stride = (bytes + 63) / 64 * 64;
        pool->memory.resize(std::size_t{buffers} * stride);
        const ibv_mr& mr = register_memory(pool->memory.data(), pool->memory.size(), IBV_ACCESS_LOCAL_WRITE);
        pool->buffers = std::make_unique<BufferPool>(
            next_pool(session_index), BufferPool::Memory{.addr = reinterpret_cast<std::uintptr_t>(mr.addr),
                                                         .lkey = mr.lkey,
                                                         .buffers = buffers,
                                                         .buffer_bytes = bytes,
                                                         .stride = stride});
        proxy.add_pool(*pool->buffers);
        pools_.push_back(std::move(pool));
        return *pools_.back();
    }

    Pool& add_ring(std::uint32_t lines, std::uint32_t messages, std::uint32_t session_index = 0) {
        auto pool = std::make_unique<Pool>();
        pool->memory.resize(lines * kCacheLine);
        const ibv_mr& mr =
            register_memory(pool->memory.data(), pool->memory.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        pool->ring = std::make_unique<RingPool>(next_pool(session_index),
                                                RingPool::Memory{.data = pool->memory.data(),
                                                                 .addr = reinterpret_cast<std::uintptr_t>(mr.addr),
                                                                 .rkey = mr.rkey,
                                                                 .lines = lines,
                                                                 .held_max = messages,
                                                                 .secret = 77});
        proxy.add_pool(*pool->ring);
        pools_.push_back(std::move(pool));
        return *pools_.back();
    }

    Srq& add_srq(const SrqShape& shape) {
        auto srq = std::make_unique<Srq>();
        SrqOptions make{.pd = pd_.get(), .domain = domain_.get(), .depth = shape.depth, .sges_max = shape.sges_max};
        srq->srq = UniqueSrq(device->create_srq(make), {device.get()});
        srq->end = std::make_unique<WorkerSrq>(WorkerSrq::Options{.handle = {0, next_srq_generation_++},
                                                                  .depth = shape.depth,
                                                                  .sges_max = shape.sges_max,
                                                                  .session = shape.session});
        RecvQueue& recvs = srq->end->recvs();
        recvs.set_provider(srq->srq.get());
        std::uint32_t part = shape.depth;
        if (shape.credit_connections != 0) {
            part = shape.depth / shape.credit_connections;
            srq->grants = std::make_unique<SharedGrants>(recvs, part, shape.credit_connections);
            recvs.set_watcher(srq->grants.get());
        }
        if (shape.pool != nullptr) {
            recvs.fill_from(*shape.pool->buffers, shape.depth, shape.pool_share, part);
        }
        proxy.add_srq(*srq->end);
        srqs.push_back(std::move(srq));
        return *srqs.back();
    }
    /// Closes an SRQ that no QP uses.
    void close(Srq& srq) {
        proxy.retire(srq.handle());
        EXPECT_EQ(device->destroy(srq.srq.get()), 0);
        (void)srq.srq.release();
        proxy.forget(srq.handle());
        std::erase_if(srqs, [&](const auto& other) { return other.get() == &srq; });
    }

    /// Adds a QP in the state INIT, or RTS if its type is UD.
    Qp& add_qp() { return add_qp(QpShape{}); }
    Qp& add_qp(const QpShape& shape);

    /// Makes an address handle to the device's own port, for all UD QPs. The handle lives as long as the world.
    WorkerAh make_ah(AhHandle handle) {
        ahs_.push_back(make_verbs_ah());
        return {.handle = handle, .ah = ahs_.back().get()};
    }

    void connect(Qp& from, Qp& to, const PathAttributes& path = {});

    /// connect() calls this if `from` has flow control.
    void start_flow(Qp& from, const Qp& to);

    /// Makes two connected QPs. Adds a session or a CQ first if the world has none.
    std::pair<Qp*, Qp*> pair(const QpShape& shape, const PathAttributes& path = {});

    /// Moves the QP to ERR, as after a device error.
    void to_error(Qp& qp, QpState before = QpState::ready);

    /// Closes the QP by the sequence of H1 (runtime/README.md). Returns true if the device flushed all work requests.
    bool close(Qp& qp, std::uint64_t patience = 1'000'000);

    /// Resets the QP by the sequence of H1, followed by RESET and INIT. Returns true if the device flushed all work
    /// requests.
    bool reset(Qp& qp, std::uint64_t patience = 1'000'000) { return reset(qp, patience, next_life_++); }
    bool reset(Qp& qp, std::uint64_t patience, std::uint32_t life);

    static constexpr int kAllButBind =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

    ibv_mr& register_memory(void* data, std::size_t bytes, int access = kAllButBind) {
        regions_.emplace_back(
            device->register_memory(pd_.get(), data, bytes, reinterpret_cast<std::uintptr_t>(data), access),
            DeviceDeleter<ibv_mr>{device.get()});
        return *regions_.back();
    }

    /// Adds zeroed memory that begins on a cache line and stays until the world ends.
    Buffer& add_buffer(std::size_t bytes, int access = kAllButBind) {
        buffers_.push_back(std::make_unique<Buffer>());
        Buffer& buffer = *buffers_.back();
        buffer.memory.resize(bytes);
        buffer.mr = &register_memory(buffer.data(), bytes, access);
        return buffer;
    }

    /// The writing end of a session's submission ring. A test uses it for requests that no session would write. The
    /// session does not know of these requests.
    [[nodiscard]] RingProducer<WorkRequest> raw(std::uint32_t session_index = 0) const {
        const End& end = *ends[session_index];
        return {at_offset<void>(end.block, end.layout.submissions()), end.layout.submission_slots};
    }

    /// A request that writes the first 8 bytes of a region to the region's byte 64.
    static WorkRequest write(std::uint64_t tag, const Qp& qp, const ibv_mr& region) {
        const auto begin = reinterpret_cast<std::uintptr_t>(region.addr);
        return {.tag = tag,
                .sge = {begin, 8, region.lkey},
                .remote_addr = begin + 64,
                .rkey = region.rkey,
                .qp = qp.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }

    Window& add_window(ibv_mw_type type = IBV_MW_TYPE_2) {
        auto window = std::make_unique<Window>();
        window->mw = {device->create_mw(pd_.get(), type), {device.get()}};
        window->end = std::make_unique<WorkerWindow>(
            WorkerWindow::Options{.handle = {static_cast<std::uint16_t>(windows_.size()), 1}});
        window->end->renew(*window->mw);
        proxy.add_window(*window->end);
        windows_.push_back(std::move(window));
        return *windows_.back();
    }
    /// Does what the control thread does after the end of a QP on which the window was bound. The handle stays, and the
    /// window is unbound.
    void renew(Window& window) {
        ASSERT_TRUE(proxy.remove_window(window.handle()));
        const ibv_mw_type type = window.mw->type;
        window.mw.reset();
        window.mw = {device->create_mw(pd_.get(), type), {device.get()}};
        window.end->renew(*window.mw);
        proxy.add_window(*window.end);
    }
    /// Makes the region known to the worker, so that windows may be bound to the region.
    MrHandle make_bindable(ibv_mr& mr) {
        const MrHandle handle{next_bindable_++, 1};
        proxy.add_region({.handle = handle, .mr = &mr});
        return handle;
    }

    /// Takes all completions that are available now.
    std::vector<Completion> poll(std::uint32_t session_index = 0) {
        std::vector<Completion> all;
        Completion some[16];
        while (const std::size_t n = session(session_index).poll(some)) {
            all.insert(all.end(), some, some + n);
        }
        return all;
    }

    /// Steps until `n` completions have come, or until `steps_max` steps were made.
    std::vector<Completion> await(std::size_t n, std::uint32_t session_index = 0, int steps_max = 10'000) {
        std::vector<Completion> all;
        for (int i = 0; i < steps_max && all.size() < n; ++i) {
            step();
            now += 1000;
            for (const Completion& completion : poll(session_index)) {
                all.push_back(completion);
            }
        }
        return all;
    }

private:
    void add_flow_control(Qp& qp, const QpShape& shape, std::uint32_t send_depth, std::uint32_t recv_depth);
    [[nodiscard]] WorkerPool::Options next_pool(std::uint32_t session_index) const {
        return {.handle = {static_cast<std::uint16_t>(pools_.size()), 1}, .session_index = session_index};
    }
    UniqueAh make_verbs_ah() {
        QpInfo self;
        std::memcpy(self.gid.data(), device->gids().front().gid.raw, 16);
        ibv_ah_attr address = to_address(self, {}, 1, 0);
        return {device->create_ah(pd_.get(), address), {device.get()}};
    }
    Options prepare(Options options) {
        options.device.fabric = "stepped-" + std::to_string(reinterpret_cast<std::uintptr_t>(this));
        options.device.clock_ns = [this] { return now; };
        if (options.sleeps) {
            bell_ = make_event_fd("a test");
            options.worker.bell = bell_.get();
        }
        return options;
    }

public:
    std::uint64_t now = 1'000'000;

private:
    UniqueFd bell_;
    Options options_;

public:
    ControlCounters counters;
    std::unique_ptr<Device> device;
    std::unique_ptr<CompletionChannel> channel;
    Worker worker;
    WorkerProxy proxy;
    std::vector<std::unique_ptr<End>> ends;
    std::vector<std::unique_ptr<Qp>> qps;
    std::vector<std::unique_ptr<Srq>> srqs;  ///< all have index 0, so there is only one at a time

private:
    std::unique_ptr<ThreadDomain> domain_;
    UniquePd pd_;
    std::vector<UniqueCq> verbs_cqs_;
    std::vector<std::unique_ptr<WorkerCq>> cqs_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<std::unique_ptr<Pool>> pools_;
    std::vector<OwnLines<std::byte>> flow_entries_;
    std::vector<std::unique_ptr<ControlBlock>> blocks_;
    std::vector<UniqueMr> regions_;
    std::vector<UniqueAh> ahs_;
    std::vector<std::unique_ptr<Window>> windows_;
    std::uint16_t next_bindable_ = 0;
    std::uint32_t next_index_ = 0;
    std::uint32_t next_life_ = 0;
    std::uint16_t next_srq_generation_ = 1;
};

}  // namespace pollcore::testing

#include "stepped_queue_pairs.hpp"
