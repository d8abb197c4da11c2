// The questions of nic_probe about the behaviour of a device.
#include <algorithm>
#include <set>
#include <thread>

#include <infiniband/mlx5dv.h>

#include "nic_probe.hpp"

namespace nic {
namespace {

constexpr std::uint32_t kDefaultDepth = 4096;  // default depth of a worker's CQ
constexpr milliseconds kSoon{1000};

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

Answer limits(const Device& device) {
    const ibv_device_attr& a = device.attr.orig_attr;
    const bool enough = a.max_cqe >= static_cast<int>(kDefaultDepth) && a.max_qp_wr >= 256 && a.max_sge >= 1;
    return {enough ? Outcome::held : Outcome::failed,
            std::string("atomics ") +
                (a.atomic_cap == IBV_ATOMIC_NONE  ? "none"
                 : a.atomic_cap == IBV_ATOMIC_HCA ? "within the device"
                                                  : "with the CPU, too") +
                ", windows " + ((a.device_cap_flags & IBV_DEVICE_MEM_WINDOW) != 0 ? "1 " : "") +
                ((a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A) != 0 ? "2A " : "") +
                ((a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 ? "2B" : ""),
            {{"queue pairs", a.max_qp},
             {"depth of a queue", a.max_qp_wr},
             {"SGEs", a.max_sge},
             {"CQs", a.max_cq},
             {"entries of a CQ", a.max_cqe},
             {"regions", a.max_mr},
             {"windows", a.max_mw},
             {"SRQs", a.max_srq},
             {"depth of an SRQ", a.max_srq_wr},
             {"reads in flight", a.max_qp_rd_atom},
             {"moderation, completions", device.attr.cq_mod_caps.max_cq_count},
             {"moderation, us", device.attr.cq_mod_caps.max_cq_period},
             {"clock, kHz", static_cast<double>(device.attr.hca_core_clock)}}};
}

Answer locked_memory(const Device& device) {
    constexpr std::size_t kMiB = 64;
    try {
        const Memory memory(device, kMiB << 20);
    } catch (const std::exception& error) {
        return {Outcome::failed, std::string(error.what()) +
                                     ". Raise memlock in /etc/security/limits.conf, which needs root: it limits users"};
    }
    return {Outcome::held, std::to_string(kMiB) + " MiB were registered at once"};
}

Answer clock(const Device& device) {
    const auto now = [&] {
        ibv_values_ex values{};
        values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        const int error = ibv_query_rt_values_ex(device.context, &values);
        if (error != 0 || (values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0) {
            throw NotOffered("ibv_query_rt_values_ex says nothing");
        }
        return static_cast<double>(values.raw_clock.tv_sec) * 1e9 + static_cast<double>(values.raw_clock.tv_nsec);
    };
    if (device.attr.hca_core_clock == 0) {
        throw NotOffered("the device has no clock that it tells the rate of");
    }
    const double before = now();
    const auto began = Clock::now();
    std::this_thread::sleep_for(milliseconds(200));
    const double ticks = now() - before;
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    const double ratio = ticks / ms / static_cast<double>(device.attr.hca_core_clock);
    return {ratio > 0.95 && ratio < 1.05 ? Outcome::held : Outcome::failed,
            "it ticks " + number(ticks / ms) + " times in a ms, where its rate is " +
                number(static_cast<double>(device.attr.hca_core_clock)) + " kHz",
            {{"rate / said", ratio}}};
}

Answer stamps(const Device& device) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 256;
    attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    ibv_cq_ex* cq = ibv_create_cq_ex(device.context, &attr);
    if (cq == nullptr) {
        throw NotOffered("a CQ with time stamps is refused: " + std::string(std::strerror(errno)));
    }
    const Owned<ibv_cq> owner(ibv_cq_ex_to_cq(cq));
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = owner.get(), .recv_cq = owner.get()});
    constexpr int kWrites = 64;
    for (int i = 0; i < kWrites; ++i) {
        pair.a.post(IBV_WR_RDMA_WRITE, static_cast<std::uint64_t>(i), memory.sge(0, 64), memory.addr(2048),
                    memory.key());
    }
    // Each completion has its own ibv_start_poll() and ibv_end_poll(), which works with any provider: see
    // runtime/device/verbs/README.md.
    const std::uint64_t mask =
        device.attr.completion_timestamp_mask != 0 ? device.attr.completion_timestamp_mask : ~0ull;
    std::uint64_t last = 0;
    int seen = 0;
    int backwards = 0;
    int moved = 0;
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (seen < kWrites && Clock::now() < deadline) {
        ibv_poll_cq_attr poll{};
        if (ibv_start_poll(cq, &poll) != 0) {
            continue;
        }
        require(cq->status == IBV_WC_SUCCESS, "a write failed: " + name_of(cq->status));
        const std::uint64_t stamp = ibv_wc_read_completion_ts(cq);
        backwards += seen > 0 && ((stamp - last) & mask) > mask / 2;
        moved += seen > 0 && stamp != last;
        last = stamp;
        ++seen;
        ibv_end_poll(cq);
    }
    require(seen == kWrites, "completions are missing");
    if (moved == 0) {
        throw NotOffered("all 64 time stamps are the same");
    }
    return {backwards == 0 ? Outcome::held : Outcome::failed,
            std::to_string(backwards) + " of 64 were earlier than the one before"};
}

/// Whether `done()` becomes true while nobody polls.
template <class Done>
bool without_a_poll(Done done) {
    const auto deadline = Clock::now() + milliseconds(20);
    while (Clock::now() < deadline) {
        if (done()) {
            return true;
        }
    }
    return false;
}

Answer small_receives(const Device& device, const QpMaker& maker, bool claims) {
    Memory memory(device, 4096);
    std::string copied;
    for (const std::uint32_t size : {1u, 8u, 16u, 32u, 33u, 60u, 64u}) {
        const auto send_cq = device.cq(16);
        const auto recv_cq = device.cq(16);
        Pair pair(device, {.send_cq = send_cq.get(), .recv_cq = recv_cq.get()}, maker);
        memory.fill(0);
        std::memset(memory.at(0), 0xA5, size);
        pair.b.receive(1, memory.sge(2048, size));
        pair.a.post(IBV_WR_SEND, 2, memory.sge(0, size));
        const ibv_wc sent = take_one(send_cq.get());
        require(sent.status == IBV_WC_SUCCESS, "a send failed: " + name_of(sent.status));
        volatile unsigned char* last = memory.at(2048 + size - 1);
        if (!without_a_poll([&] { return *last == 0xA5; })) {
            copied += (copied.empty() ? "" : ", ") + std::to_string(size);
        }
        const ibv_wc received = take_one(recv_cq.get());
        require(received.status == IBV_WC_SUCCESS && received.byte_len == size,
                "a receive failed: " + name_of(received.status));
        require(std::memcmp(memory.at(0), memory.at(2048), size) == 0,
                "a receive of " + std::to_string(size) + " bytes has others");
    }
    const std::string text =
        copied.empty() ? "the device writes all of them" : "the CPU that polls writes those of " + copied + " bytes";
    return {claims ? (copied.empty() ? Outcome::held : Outcome::failed) : Outcome::found, text};
}

Answer small_receives_plain(const Device& device) {
    return small_receives(device, {}, false);
}
Answer small_receives_untouched(const Device& device) {
    if (!mlx5dv_is_supported(device.context->device)) {
        throw NotOffered("it is asked of mlx5's provider, by mlx5dv_create_qp");
    }
    return small_receives(
        device,
        [&](ibv_qp_init_attr& attr) {
            ibv_qp_init_attr_ex extended{};
            std::memcpy(&extended, &attr, sizeof attr);
            extended.comp_mask = IBV_QP_INIT_ATTR_PD;
            extended.pd = device.pd;
            mlx5dv_qp_init_attr mlx5{};
            mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
            mlx5.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
            return mlx5dv_create_qp(device.context, &extended, &mlx5);
        },
        true);
}

Answer short_atomic(const Device& device) {
    if (device.attr.orig_attr.atomic_cap == IBV_ATOMIC_NONE) {
        throw NotOffered("no atomics");
    }
    const auto cq = device.cq(16);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get()});
    memory.fill(0x11);
    std::memset(memory.at(2048), 0x77, 8);  // the value that the atomic must return
    ibv_sge sge = memory.sge(0, 4);
    ibv_send_wr work =
        QueuePair::request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, memory.addr(2048), memory.key(), IBV_SEND_SIGNALED);
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(pair.a.get(), &work, &bad); error != 0) {
        return {Outcome::found, "with room for 4 bytes the call refuses it: " + std::string(std::strerror(error))};
    }
    const ibv_wc wc = take_one(cq.get());
    const auto wrote = std::count_if(memory.at(0), memory.at(16), [](unsigned char byte) { return byte != 0x11; });
    return {Outcome::found,
            "with room for 4 bytes: " + name_of(wc.status) + ", and " + std::to_string(wrote) + " bytes were written"};
}

Answer data_in_order(const Device& device) {
    const auto cq = device.cq(16);
    Memory memory(device, 16384);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get()});
    const bool promised = ibv_query_qp_data_in_order(pair.b.get(), IBV_WR_RDMA_WRITE, 0) == 1;
    const int writes = device.quick ? 100 : 20'000;
    constexpr std::size_t kWords = 512;
    auto* from = reinterpret_cast<std::uint64_t*>(memory.at(0));
    volatile std::uint64_t* to = reinterpret_cast<std::uint64_t*>(memory.at(8192));
    int early = 0;
    for (int n = 1; n <= writes; ++n) {
        std::fill(from, from + kWords, static_cast<std::uint64_t>(n));
        pair.a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, kWords * 8), memory.addr(8192), memory.key());
        const auto deadline = Clock::now() + std::chrono::seconds(10);
        while (to[kWords - 1] != static_cast<std::uint64_t>(n) && Clock::now() < deadline) {
        }
        std::size_t old = 0;
        for (std::size_t i = 0; i < kWords; ++i) {
            old += to[i] != static_cast<std::uint64_t>(n);
        }
        early += old > 0;
        const ibv_wc wc = take_one(cq.get());
        require(wc.status == IBV_WC_SUCCESS, "a write failed: " + name_of(wc.status));
    }
    const std::string text = std::string("ibv_query_qp_data_in_order says ") + (promised ? "yes" : "no") +
                             "; the last word of 4 KiB was there before others in " + std::to_string(early) + " of " +
                             std::to_string(writes) + " writes";
    return {!promised ? Outcome::found : early == 0 ? Outcome::held : Outcome::failed, text};
}

Answer word_tears(const Device& device) {
    const auto cq = device.cq(16);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get(), .inline_size = 8});
    volatile std::uint64_t* word = reinterpret_cast<std::uint64_t*>(memory.at(2048));
    const std::uint32_t writes = device.quick ? 100 : 50'000;
    std::uint64_t torn = 0;
    for (std::uint32_t n = 1; n <= writes; ++n) {
        const std::uint64_t value = std::uint64_t{n} << 32 | n;
        std::memcpy(memory.at(0), &value, 8);
        pair.a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 8), memory.addr(2048), memory.key(),
                    IBV_SEND_SIGNALED | IBV_SEND_INLINE);
        std::uint64_t seen = 0;
        const auto deadline = Clock::now() + std::chrono::seconds(10);
        do {
            seen = *word;
            torn += seen >> 32 != (seen & 0xffffffff);
        } while (seen != value && Clock::now() < deadline);
        (void)take_one(cq.get());
    }
    return {Outcome::found, "half of a word was seen " + std::to_string(torn) + " times in " + std::to_string(writes) +
                                " writes of 8 bytes"};
}

Answer flush_order(const Device& device) {
    const auto send_cq = device.cq(64);
    const auto recv_cq = device.cq(64);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = send_cq.get(), .recv_cq = recv_cq.get()});
    constexpr std::uint64_t kAll = 16;
    constexpr std::uint64_t kBad = 5;
    for (std::uint64_t i = 0; i < kAll; ++i) {
        pair.a.receive(i, memory.sge(1024, 64));
        pair.b.receive(i, memory.sge(1024, 64));
    }
    std::array<ibv_send_wr, kAll> chain{};
    ibv_sge sge = memory.sge(0, 64);
    for (std::uint64_t i = 0; i < kAll; ++i) {
        // All requests except the first are unsignaled. An unsignaled request that succeeds must not complete; a
        // flushed request must complete.
        chain[i] = QueuePair::request(IBV_WR_RDMA_WRITE, i, &sge, memory.addr(2048),
                                      i == kBad ? ~memory.key() : memory.key(), i == 0 ? IBV_SEND_SIGNALED : 0);
        chain[i].next = i + 1 < kAll ? &chain[i + 1] : nullptr;
    }
    pair.a.post(chain[0]);
    const std::vector<ibv_wc> sends = take(send_cq.get(), 1 + kAll - kBad, kSoon * 5);
    std::string wrong;
    const auto expect = [&](std::size_t at, std::uint64_t id, ibv_wc_status status) {
        if (at >= sends.size()) {
            wrong += "no completion of " + std::to_string(id) + "; ";
        } else if (sends[at].wr_id != id || sends[at].status != status) {
            wrong += std::to_string(sends[at].wr_id) + ": " + name_of(sends[at].status) + " instead of " +
                     std::to_string(id) + ": " + name_of(status) + "; ";
        }
    };
    expect(0, 0, IBV_WC_SUCCESS);
    expect(1, kBad, IBV_WC_REM_ACCESS_ERR);
    for (std::uint64_t i = kBad + 1; i < kAll; ++i) {
        expect(i - kBad + 1, i, IBV_WC_WR_FLUSH_ERR);
    }
    // The target's queue pair moves to the error state by itself, and the sender's receives are flushed.
    const std::vector<ibv_wc> receives = take(recv_cq.get(), 2 * kAll, kSoon);
    const auto flushed = std::count_if(receives.begin(), receives.end(),
                                       [](const ibv_wc& wc) { return wc.status == IBV_WC_WR_FLUSH_ERR; });
    return {wrong.empty() ? Outcome::held : Outcome::failed,
            (wrong.empty() ? "success, remote access error, then flushed one by one" : wrong) + "; " +
                std::to_string(flushed) + " of 32 receives at both ends were flushed"};
}

Answer late_receives(const Device& device) {
    const auto cq = device.cq(64);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get()});
    pair.b.enter(IBV_QPS_ERR);
    const int error = pair.b.try_receive(1, memory.sge(0, 64));
    if (error != 0) {
        return {Outcome::found, "the call refuses: " + std::string(std::strerror(error))};
    }
    const bool flushed = !take(cq.get(), 1, kSoon).empty();
    return {Outcome::found, flushed ? "flushed" : "taken, and never flushed"};
}

Answer reset(const Device& device) {
    const auto cq = device.cq(64);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get()});
    Pair other(device, {.send_cq = cq.get(), .recv_cq = cq.get()});
    pair.a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 64), memory.addr(2048), memory.key());
    other.a.post(IBV_WR_RDMA_WRITE, 2, memory.sge(0, 64), memory.addr(2048), memory.key());
    std::this_thread::sleep_for(milliseconds(300));  // both completions are in the CQ
    pair.a.enter(IBV_QPS_RESET);
    std::vector<ibv_wc> left = take(cq.get(), 1, std::chrono::seconds(10));
    const std::vector<ibv_wc> second = take(cq.get(), 1, milliseconds(200));
    left.insert(left.end(), second.begin(), second.end());
    const bool others = std::any_of(left.begin(), left.end(), [](const ibv_wc& wc) { return wc.wr_id == 2; });
    const bool own = std::any_of(left.begin(), left.end(), [](const ibv_wc& wc) { return wc.wr_id == 1; });
    return {others ? Outcome::held : Outcome::failed,
            std::string("the completion of another queue pair ") + (others ? "stays" : "is lost") +
                ", that of the one that was reset " + (own ? "stays, too" : "is purged")};
}

Answer no_receive(const Device& device) {
    const auto cq = device.cq(64);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get(), .rnr_timer = 12, .rnr_retry = 3});
    const auto began = Clock::now();
    pair.a.post(IBV_WR_SEND, 1, memory.sge(0, 64));
    const ibv_wc wc = take_one(cq.get());
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    return {wc.status == IBV_WC_RNR_RETRY_EXC_ERR ? Outcome::held : Outcome::failed,
            name_of(wc.status) + " after three retries, each after at least 0.64 ms",
            {{"ms until it failed", ms}}};
}

Answer no_answer(const Device& device) {
    const auto cq = device.cq(64);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = cq.get(), .recv_cq = cq.get(), .timeout = 12, .retries = 2});
    pair.b.enter(IBV_QPS_RESET);
    const auto began = Clock::now();
    pair.a.post(IBV_WR_SEND, 1, memory.sge(0, 64));
    const ibv_wc wc = take_one(cq.get());
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    return {wc.status == IBV_WC_RETRY_EXC_ERR ? Outcome::held : Outcome::failed,
            name_of(wc.status) + " after two retries, with a time-out of 17 ms, which a device may raise",
            {{"ms until it failed", ms}}};
}

struct Shared {
    explicit Shared(const Device& device) : cq(device.cq(64)), memory(device, 4096) {
        if (device.attr.orig_attr.max_srq == 0) {
            throw NotOffered("no shared receive queues");
        }
        ibv_srq_init_attr attr{};
        attr.attr = {.max_wr = 32, .max_sge = 1, .srq_limit = 0};
        srq.reset(made(ibv_create_srq(device.pd, &attr), "cannot make a shared receive queue"));
        for (std::uint64_t i = 0; i < 8; ++i) {
            ibv_sge sge = memory.sge(2048, 64);
            ibv_recv_wr work{100 + i, nullptr, &sge, 1};
            ibv_recv_wr* bad = nullptr;
            require(ibv_post_srq_recv(srq.get(), &work, &bad) == 0, "cannot post to a shared receive queue");
        }
    }
    Owned<ibv_cq> cq;
    Memory memory;
    Owned<ibv_srq> srq;
};

Answer srq_limit(const Device& device) {
    Shared shared(device);
    Pair pair(device, {.send_cq = shared.cq.get(), .recv_cq = shared.cq.get(), .srq = shared.srq.get()});
    ibv_srq_attr attr{};
    attr.srq_limit = 6;
    require(ibv_modify_srq(shared.srq.get(), &attr, IBV_SRQ_LIMIT) == 0, "cannot arm the limit");
    for (std::uint64_t i = 0; i < 4; ++i) {
        pair.a.post(IBV_WR_SEND, i, shared.memory.sge(0, 64));
    }
    require(take(shared.cq.get(), 8).size() == 8, "completions are missing");
    const bool came = device.event(IBV_EVENT_SRQ_LIMIT_REACHED, kSoon);
    const bool twice = device.event(IBV_EVENT_SRQ_LIMIT_REACHED, milliseconds(100));
    return {came && !twice ? Outcome::held : Outcome::failed, !came   ? "no event came"
                                                              : twice ? "it came more than once"
                                                                      : "it came once"};
}

Answer last_wqe(const Device& device) {
    Shared shared(device);
    Pair pair(device, {.send_cq = shared.cq.get(), .recv_cq = shared.cq.get(), .srq = shared.srq.get()});
    pair.b.enter(IBV_QPS_ERR);
    const auto began = Clock::now();
    const bool came = device.event(IBV_EVENT_QP_LAST_WQE_REACHED, kSoon);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    return {Outcome::found,
            came ? "the event came after " + number(ms) + " ms" : "no such event: closing waits 20 ms for it"};
}

struct Told {
    explicit Told(const Device& device)
        : channel(made(ibv_create_comp_channel(device.context), "cannot make a completion channel")),
          cq(device.cq(256, channel.get())) {}
    [[nodiscard]] bool event(milliseconds patience) const {
        pollfd file{channel->fd, POLLIN, 0};
        if (::poll(&file, 1, static_cast<int>(patience.count())) != 1) {
            return false;
        }
        ibv_cq* of = nullptr;
        void* context = nullptr;
        require(ibv_get_cq_event(channel.get(), &of, &context) == 0, "cannot take an event");
        ibv_ack_cq_events(of, 1);
        return true;
    }
    void arm() const { require(ibv_req_notify_cq(cq.get(), 0) == 0, "cannot arm a CQ"); }
    Owned<ibv_comp_channel> channel;
    Owned<ibv_cq> cq;
};

Answer events(const Device& device) {
    const Told told(device);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = told.cq.get(), .recv_cq = told.cq.get()});
    const auto write = [&] { pair.a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 64), memory.addr(2048), memory.key()); };
    told.arm();
    write();
    const bool first = told.event(kSoon);
    write();
    const bool unasked = told.event(milliseconds(100));
    // The CQ now holds two completions that nobody has polled.
    told.arm();
    const bool late = told.event(milliseconds(100));
    require(take(told.cq.get(), 2).size() == 2, "completions are missing");
    return {first && !unasked ? Outcome::held : Outcome::failed,
            std::string(first ? "an event for each time that it was armed" : "no event came") +
                (unasked ? ", and one unasked" : "") +
                "; armed while completions lie there: " + (late ? "an event at once" : "no event")};
}

Answer moderation(const Device& device) {
    const auto& caps = device.attr.cq_mod_caps;
    if (caps.max_cq_count == 0 || caps.max_cq_period == 0) {
        throw NotOffered("no moderation");
    }
    const Told told(device);
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = told.cq.get(), .recv_cq = told.cq.get()});
    const auto until_told = [&] {
        std::vector<double> all;
        for (int i = 0; i < 11; ++i) {
            told.arm();
            const auto began = Clock::now();
            pair.a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 64), memory.addr(2048), memory.key());
            require(told.event(kSoon), "no event came");
            all.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
            (void)take_one(told.cq.get());
        }
        std::sort(all.begin(), all.end());
        return all[all.size() / 2];
    };
    const double without = until_told();
    ibv_modify_cq_attr attr{};
    attr.attr_mask = IBV_CQ_ATTR_MODERATE;
    attr.moderate = {static_cast<std::uint16_t>(std::min<unsigned>(16, caps.max_cq_count)),
                     static_cast<std::uint16_t>(std::min<unsigned>(2000, caps.max_cq_period))};
    const int error = ibv_modify_cq(told.cq.get(), &attr);
    require(error == 0, "ibv_modify_cq", error);
    const double with = until_told();
    return {Outcome::found,
            with > without + attr.moderate.cq_period / 2 ? "it delays the event of one completion"
                                                         : "accepted, and the event of one completion comes as soon",
            {{"period, us", static_cast<double>(attr.moderate.cq_period)},
             {"until told, us", without},
             {"until told with it, us", with}}};
}

/// Checks that each write completes exactly once, in order on each queue pair.
std::string flood(const Device& device, std::size_t pairs, std::size_t cqs, unsigned rounds) {
    constexpr std::size_t kDepth = 16;
    Memory memory(device, 4096);
    std::vector<Owned<ibv_cq>> queues;
    for (std::size_t i = 0; i < cqs; ++i) {
        queues.push_back(device.cq(static_cast<int>((pairs / cqs + 1) * kDepth)));
    }
    std::vector<std::unique_ptr<Pair>> all;
    for (std::size_t i = 0; i < pairs; ++i) {
        ibv_cq* cq = queues[i % cqs].get();
        all.push_back(std::make_unique<Pair>(device, Shape{.send_cq = cq, .recv_cq = cq, .depth = kDepth}));
    }
    std::vector<std::uint64_t> next(pairs);
    for (unsigned round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < pairs; ++i) {
            for (std::size_t k = 0; k < kDepth; ++k) {
                all[i]->a.post(IBV_WR_RDMA_WRITE, i << 32 | (round * kDepth + k), memory.sge(0, 64), memory.addr(2048),
                               memory.key());
            }
        }
        std::size_t left = pairs * kDepth;
        const auto deadline = Clock::now() + std::chrono::seconds(60);
        while (left > 0) {
            for (const auto& cq : queues) {
                ibv_wc some[32];
                const int got = ibv_poll_cq(cq.get(), 32, some);
                require(got >= 0, "cannot poll a CQ");
                for (int k = 0; k < got; ++k) {
                    const std::size_t i = some[k].wr_id >> 32;
                    if (some[k].status != IBV_WC_SUCCESS) {
                        return "a write failed: " + name_of(some[k].status);
                    }
                    if (i >= pairs || (some[k].wr_id & 0xffffffff) != next[i] || some[k].qp_num != all[i]->a.number()) {
                        return "a completion is not the next one of its queue pair";
                    }
                    ++next[i];
                    --left;
                }
            }
            if (left > 0 && Clock::now() > deadline) {
                return std::to_string(left) + " completions are missing";
            }
        }
    }
    return "";
}
Answer flood_of(const Device& device, std::size_t pairs, std::size_t cqs) {
    const unsigned rounds = device.quick ? 1 : 100;
    const std::string wrong = flood(device, pairs, cqs, rounds);
    return {wrong.empty() ? Outcome::held : Outcome::failed,
            !wrong.empty() ? wrong
                           : std::to_string(pairs * 16 * rounds) + " writes on " + std::to_string(pairs) +
                                 " pairs and " + std::to_string(cqs) + " CQs: each completed once, in order"};
}
Answer many_qps(const Device& device) {
    return flood_of(device, device.quick ? 32 : 512, 1);
}
Answer many_cqs(const Device& device) {
    return flood_of(device, device.quick ? 32 : 512, device.quick ? 32 : 512);
}

Answer receives(const Device& device, ibv_cq* recv_cq) {
    const auto send_cq = device.cq(256);
    Memory memory(device, 64 * 256);
    Pair pair(device, {.send_cq = send_cq.get(), .recv_cq = recv_cq});
    const unsigned rounds = device.quick ? 4 : 1000;
    std::uint64_t next = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        for (std::uint64_t i = 0; i < 64; ++i) {
            pair.b.receive(round * 64 + i, memory.sge(64 * 64 + i * 64, 64));
        }
        for (std::uint32_t i = 0; i < 64; ++i) {
            pair.a.post(IBV_WR_SEND, i, memory.sge(0, round % 2 == 0 ? 40 : 1 + i), 0, 0,
                        i == 63 ? IBV_SEND_SIGNALED : 0);
        }
        const std::vector<ibv_wc> all = take(recv_cq, 64);
        require(all.size() == 64, "completions are missing");
        for (std::uint32_t i = 0; i < 64; ++i) {
            require(all[i].status == IBV_WC_SUCCESS, "a receive failed: " + name_of(all[i].status));
            if (all[i].wr_id != next++ || all[i].byte_len != (round % 2 == 0 ? 40 : 1 + i) ||
                all[i].qp_num != pair.b.number()) {
                return {Outcome::failed,
                        "completion " + std::to_string(next - 1) + " is another's, or of another length"};
            }
        }
        (void)take_one(send_cq.get());
    }
    return {Outcome::held, std::to_string(next) + " receives, in order and each of its length"};
}
Answer receive_bursts(const Device& device) {
    const auto cq = device.cq(256);
    return receives(device, cq.get());
}
Answer compressed(const Device& device) {
    mlx5dv_context caps{};
    caps.comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION;
    if (!mlx5dv_is_supported(device.context->device) || mlx5dv_query_device(device.context, &caps) != 0 ||
        caps.cqe_comp_caps.max_num == 0) {
        throw NotOffered("no compressed completions");
    }
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 256;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    mlx5dv_cq_init_attr mlx5{};
    mlx5.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
    mlx5.cqe_comp_res_format = MLX5DV_CQE_RES_FORMAT_HASH;
    ibv_cq_ex* cq = mlx5dv_create_cq(device.context, &attr, &mlx5);
    if (cq == nullptr) {
        throw NotOffered("a CQ of compressed completions is refused: " + std::string(std::strerror(errno)));
    }
    const Owned<ibv_cq> owner(ibv_cq_ex_to_cq(cq));
    return receives(device, owner.get());
}

Answer numbers(const Device& device) {
    const auto cq = device.cq(16);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 16; ++i) {
        const QueuePair qp(device, {.send_cq = cq.get(), .recv_cq = cq.get(), .depth = 4}, {});
        seen.insert(qp.number());
    }
    return {Outcome::found, "16 queue pairs, one after the other, had " + std::to_string(seen.size()) + " numbers"};
}

}  // namespace

std::vector<Question> behaviour() {
    return {
        {"limits", "The device has room for what a configuration has by default", limits},
        {"locked-memory", "A process may lock as much memory as is registered by default", locked_memory},
        {"clock", "The device's clock can be read, and runs at the rate that the device says", clock},
        {"stamps", "Time stamps of completions do not run backwards within a CQ", stamps},
        {"small-receives", "Who writes a small receive to memory, the device or the CPU that polls",
         small_receives_plain},
        {"small-receives-untouched",
         "Where the runtime asks the provider so, no CPU writes a small receive for the device",
         small_receives_untouched},
        {"short-atomic", "What an atomic does whose SGE is too short for its answer", short_atomic},
        {"data-in-order", "Where the provider says that data arrives in order, the last byte of a write arrives last",
         data_in_order},
        {"word-tears", "Whether a word of 8 bytes that a peer writes is seen half done", word_tears},
        {"flush-order", "What stands behind a request that failed is flushed, in order, and unsignaled work too",
         flush_order},
        {"late-receives", "What becomes of a receive that is posted in state error", late_receives},
        {"reset", "A queue pair that is reset takes no completions of others along", reset},
        {"no-receive", "A send for which no receive comes ends with IBV_WC_RNR_RETRY_EXC_ERR", no_receive},
        {"no-answer", "A send that nobody answers ends with IBV_WC_RETRY_EXC_ERR", no_answer},
        {"srq-limit", "A shared receive queue's limit is told, once", srq_limit},
        {"last-wqe", "Whether a queue pair of a shared receive queue tells that it takes no more", last_wqe},
        {"events", "An armed CQ tells once, and one that is not armed never", events},
        {"moderation", "What moderation does to the event of one completion", moderation},
        {"many-qps", "Many queue pairs on one CQ: each completion comes once, in its queue pair's order", many_qps},
        {"many-cqs", "Many CQs: each completion comes once, in its queue pair's order", many_cqs},
        {"receive-bursts", "Receives in bursts complete in order, each with its length", receive_bursts},
        {"compressed", "The same receives with compressed completions", compressed},
        {"numbers", "How soon a number of a queue pair is used again", numbers},
    };
}

}  // namespace nic
