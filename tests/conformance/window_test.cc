// Memory windows: binds, invalidation by either end, and which access each of these opens or closes. Queue pair b owns
// the memory and its windows. Queue pair a is the peer that uses them.
//
// Two things cannot be tested on Soft-RoCE (Linux 6.1). Invalidating a window that is not bound makes its kernel follow
// a null pointer. And if an unfenced bind stands behind a request that nobody answers, Soft-RoCE never gives the
// request up.
#include <array>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class Windows : public Conformance {
protected:
    static constexpr std::uint64_t kBegin = 4096;  // offset of the windows in their region
    static constexpr std::uint64_t kLength = 1024;
    static constexpr std::uint32_t kEverything = kWindowWrite | kWindowRead | kWindowAtomic;

    Windows() : region(runtime.allocate(kBytes, bindable())) {}
    static Access bindable() {
        Access access = Access::all();
        access.window_bind = true;
        return access;
    }

    [[nodiscard]] WorkRequest bind(std::uint64_t tag, const MemoryWindow& window, std::uint32_t key,
                                   std::uint64_t length = kLength) const {
        return {.tag = tag,
                .bind = {window.handle(), region.handle(), length},
                .remote_addr = region.addr() + kBegin,
                .bind_access = kEverything,
                .rkey = key,
                .qp = b.handle(),
                .opcode = Opcode::bind_mw,
                .flags = kSignaled};
    }
    [[nodiscard]] WorkRequest invalidate(std::uint64_t tag, std::uint32_t key) const {
        return {.tag = tag, .invalidate_rkey = key, .qp = b.handle(), .opcode = Opcode::local_inv, .flags = kSignaled};
    }
    [[nodiscard]] WorkRequest send_with_inv(std::uint64_t tag, std::uint32_t key) const {
        return WorkRequest::send_with_inv(a.handle(), local_sge(16), key).with_tag(tag);
    }
    /// A request of the peer to the offset `at` of the region.
    [[nodiscard]] WorkRequest use(Opcode opcode, std::uint64_t tag, std::uint32_t key, std::uint64_t at = kBegin,
                                  std::uint32_t length = 8) const {
        WorkRequest request = rdma(opcode, tag, length);
        request.remote_addr = region.addr() + at;
        request.rkey = key;
        request.compare_add = 1;
        return request;
    }
    /// Checks that a receive tells that its sender invalidated `key`.
    static void expect_told(const Completion& received, std::uint32_t key) {
        if (TestDevice::get().is_rxe()) {
            // Soft-RoCE sets the kernel's bit for an invalidation, which the verbs call IBV_WC_IP_CSUM_OK.
            EXPECT_EQ(received.flags & (kWithInv | kWithImm), 0);
        } else {
            EXPECT_EQ(received.flags & (kWithInv | kWithImm), kWithInv);
            EXPECT_EQ(received.invalidated_rkey, key);
        }
    }
    Status status_of(const WorkRequest& request) {
        submit(request);
        return await_one().status;
    }
    /// Connects a and b, binds a new window on b, and returns the window's key.
    std::uint32_t bind_new(MemoryWindow& window, WindowType type = WindowType::type_2) {
        return bind_new(window, type, kEverything);
    }
    std::uint32_t bind_new(MemoryWindow& window, WindowType type, std::uint32_t access) {
        connect_pair();
        const std::uint32_t key = bind_on_pair(window, type, access);
        Exercised::get().note("memory windows", type == WindowType::type_1 ? "type 1" : "type 2");
        return key;
    }
    std::uint32_t bind_on_pair(MemoryWindow& window, WindowType type = WindowType::type_2,
                               std::uint32_t access = kEverything) {
        window = runtime.create_memory_window(session, type);
        const std::uint32_t key = next_rkey(window.rkey());
        WorkRequest request = bind(1, window, key);
        request.bind_access = access;
        submit(request);
        const Completion bound = await_one();
        EXPECT_EQ(bound.status, Status::success);
        EXPECT_EQ(bound.opcode, CompletionOpcode::bind_mw);
        EXPECT_EQ(bound.window_rkey, key);
        EXPECT_EQ(window.rkey(), key);
        return key;
    }

    MemoryRegion region;
};

TEST_F(Windows, TheDeviceSaysWhichItHas) {
    const DeviceReport device = runtime.report().devices.at(0);
    EXPECT_TRUE(device.memory_windows_1);
    EXPECT_TRUE(device.memory_windows_2);
    EXPECT_TRUE(device.invalidation);
}

TEST_F(Windows, OpenARangeForReadsWritesAndAtomicsUnderTheirNewKey) {
    for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
        MemoryWindow window;
        const std::uint32_t key = bind_new(window, type);
        fill(region, 9);
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key, kBegin, kLength)), Status::success);
        EXPECT_EQ(std::memcmp(region.data() + kBegin, local.data(), kLength), 0);
        EXPECT_EQ(status_of(use(Opcode::rdma_read, 3, key, kBegin + kLength - 8)), Status::success);
        EXPECT_EQ(status_of(use(Opcode::atomic_fetch_and_add, 4, key, kBegin + 64)), Status::success);
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 5, region.rkey(), 0)), Status::success) << "the region's own key";
        window.deallocate();
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 6, key)), Status::rem_access_err);
    }
}

TEST_F(Windows, TheKeyFromBeforeTheBindOpensNothing) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key - 1)), Status::rem_access_err);
}

TEST_F(Windows, BeyondTheirRangeTheyOpenNothing) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    fill(region, 9);
    const std::vector<std::byte> before(region.data(), region.data() + region.size());
    // Soft-RoCE checks only the bounds of the region, not those of the window.
    const Status status = status_of(use(Opcode::rdma_write, 2, key, kBegin + kLength - 7));
    EXPECT_EQ(status, expected(Status::rem_access_err, Status::success));
    if (status != Status::success) {
        EXPECT_EQ(std::memcmp(before.data(), region.data(), region.size()), 0);
    }
}

TEST_F(Windows, BeyondTheirRegionTheyOpenNothing) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key, kBytes - 7)), Status::rem_access_err);
}

TEST_F(Windows, ARightThatABindDoesNotGiveIsMissing) {
    const struct {
        Opcode opcode;
        std::uint32_t access;
    } cases[] = {{Opcode::rdma_write, kWindowRead | kWindowAtomic},
                 {Opcode::rdma_read, kWindowWrite | kWindowAtomic},
                 {Opcode::atomic_fetch_and_add, kWindowRead | kWindowWrite},
                 {Opcode::atomic_cmp_and_swp, kWindowRead | kWindowWrite}};
    for (const auto& test : cases) {
        MemoryWindow window;
        const std::uint32_t key = bind_new(window, WindowType::type_2, test.access);
        EXPECT_EQ(status_of(use(test.opcode, 2, key)), Status::rem_access_err) << static_cast<int>(test.opcode);
    }
}

TEST_F(Windows, AZeroBasedWindowIsAddressedFromItsBeginning) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window, WindowType::type_2, kWindowWrite | kWindowZeroBased);
    WorkRequest request = use(Opcode::rdma_write, 2, key);
    request.remote_addr = 16;
    EXPECT_EQ(status_of(request), Status::success);
    EXPECT_EQ(std::memcmp(region.data() + kBegin + 16, local.data(), 8), 0);
    Exercised::get().note("memory windows", "zero-based");
}

TEST_F(Windows, ALocalInvalidationClosesThemAndTheyCanBeBoundAgain) {
    MemoryWindow window;
    std::uint32_t key = bind_new(window);
    for (std::uint64_t round = 0; round < 300; ++round) {  // more rounds than a window has different keys
        submit(invalidate(2, key));
        const Completion ended = await_one();
        ASSERT_EQ(ended.status, Status::success);
        ASSERT_EQ(ended.opcode, CompletionOpcode::local_inv);
        key = next_rkey(key);
        ASSERT_EQ(status_of(bind(3, window, key)), Status::success);
        ASSERT_EQ(status_of(use(Opcode::rdma_write, 4, key)), Status::success);
    }
    EXPECT_EQ(status_of(invalidate(5, key)), Status::success);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 6, key)), Status::rem_access_err);
}

TEST_F(Windows, ASendWithInvalidateClosesThemAndTellsTheReceiverTheKey) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    submit(recv(2, 64));
    submit(send_with_inv(3, key));
    const auto completions = await(2);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::success);
    EXPECT_EQ(sent[0].opcode, CompletionOpcode::send);
    EXPECT_EQ(received[0].status, Status::success);
    EXPECT_EQ(received[0].byte_len, 16u);
    expect_told(received[0], key);
    EXPECT_EQ(std::memcmp(remote.data(), local.data(), 16), 0);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 4, key)), Status::rem_access_err);
}

TEST_F(Windows, ASendWithInvalidateThatTakesASharedReceiveTellsTheKeyToo) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 8});
    QueuePairOptions receiver = shape();
    receiver.srq = &srq;
    connect_pair(receiver, {});
    MemoryWindow window = runtime.create_memory_window(session);
    const std::uint32_t key = next_rkey(window.rkey());
    ASSERT_EQ(status_of(bind(1, window, key)), Status::success);
    submit({.tag = 2, .sge = remote_sge(64), .srq = srq.handle(), .opcode = Opcode::srq_recv, .num_sge = 1});
    submit(send_with_inv(3, key));
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].status, Status::success);
    EXPECT_EQ(received[0].srq, srq.handle());
    expect_told(received[0], key);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 4, key)), Status::rem_access_err);
    a.close();
    b.close();
}

// In a burst: signaled and not, behind a fence, with a payload in the request's line and without one. Each ends its own
// window, and the peer learns of them in order.
TEST_F(Windows, SendsWithInvalidateStandAmongOtherRequestsOfABurst) {
    for (const bool coalesces : {false, true}) {
        QueuePairOptions options = shape();
        options.coalesce_signals = coalesces;
        connect_pair(options, {});
        std::array<MemoryWindow, 4> windows;
        std::array<std::uint32_t, 4> keys;
        for (std::size_t i = 0; i < windows.size(); ++i) {
            keys[i] = bind_on_pair(windows[i]);
        }
        for (std::uint64_t i = 0; i < 7; ++i) {
            submit(recv(10 + i, 64, 64 * i));
        }
        const Sge none{};
        submit({send(1, 8), send_with_inv(2, keys[0]), rdma(Opcode::rdma_read, 3, 8),
                send_with_inv(4, keys[1]).with_flags(kFence | kSolicited), send_with_inv(5, keys[2]).unsignaled(),
                send(6, 8, 0), WorkRequest::send_with_inv(a.handle(), none, keys[3]).with_tag(7),
                WorkRequest::send_with_imm(a.handle(), local_sge(8), keys[3]).with_tag(8)});
        const auto completions = await(6 + 7);
        const auto sent = of(completions, a.handle(), false);
        const auto received = of(completions, b.handle(), true);
        ASSERT_EQ(sent.size(), 6u);
        ASSERT_EQ(received.size(), 7u);
        const std::array<std::uint64_t, 6> told{1, 2, 3, 4, 7, 8};
        for (std::size_t i = 0; i < told.size(); ++i) {
            EXPECT_EQ(sent[i].tag, told[i]);
            EXPECT_EQ(sent[i].status, Status::success);
            EXPECT_EQ(sent[i].opcode, told[i] == 3 ? CompletionOpcode::rdma_read : CompletionOpcode::send);
        }
        EXPECT_EQ(session.retired(a.handle()), 2u);
        // The key that each message has invalidated, and its length.
        const std::array<std::uint32_t, 7> ended{0, keys[0], keys[1], keys[2], 0, keys[3], 0};
        const std::array<std::uint32_t, 7> lengths{8, 16, 16, 16, 8, 0, 8};
        for (std::size_t i = 0; i < ended.size(); ++i) {
            EXPECT_EQ(received[i].tag, 10 + i);
            EXPECT_EQ(received[i].status, Status::success);
            EXPECT_EQ(received[i].byte_len, lengths[i]);
            if (ended[i] != 0) {
                expect_told(received[i], ended[i]);
            } else {
                EXPECT_EQ(received[i].flags & kWithInv, 0);
            }
        }
        EXPECT_EQ(received[6].imm_data, keys[3]);
        // An error ends the queue pair, so only one of the keys can be tried.
        const std::uint32_t key = keys[coalesces ? 1 : 2];
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 9, key)), Status::rem_access_err);
        a.close();
        b.close();
    }
}

TEST_F(Windows, SendsWithInvalidateMayBeInline) {
    for (const std::size_t length : {0u, 16u, 17u, 64u}) {
        MemoryWindow window;
        const std::uint32_t key = bind_new(window);
        submit(recv(2, 64));
        ASSERT_EQ(session.try_submit_inline(send_with_inv(3, key), {local.data() + 100, length}), Refusal::none);
        const auto completions = await(2);
        const auto received = of(completions, b.handle(), true);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].byte_len, length);
        expect_told(received[0], key);
        EXPECT_EQ(std::memcmp(remote.data(), local.data() + 100, length), 0);
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 4, key)), Status::rem_access_err);
    }
}

TEST_F(Windows, SendsWithInvalidateWaitForCreditsLikeOthers) {
    QueuePairOptions options = shape();
    options.flow = FlowControl::credits;
    connect_pair(options, {.rnr_retry = 0, .min_rnr_timer = 1});
    MemoryWindow window;
    const std::uint32_t key = bind_on_pair(window);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key)), Status::success);
    const std::uint64_t waits = runtime.worker_counters(0).waits_for_credit.value();
    submit({send_with_inv(3, key).unsignaled(), send(4, 8)});
    until([&] { return runtime.worker_counters(0).waits_for_credit.value() > waits; });
    submit(recv(5, 64));
    submit(recv(6, 64));
    const auto completions = await(3);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].tag, 4u);
    EXPECT_EQ(sent[0].status, Status::success);
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(received[0].tag, 5u);
    expect_told(received[0], key);
    EXPECT_EQ(received[1].flags & kWithInv, 0);
    // With credit left, they need not wait.
    const std::uint32_t next = next_rkey(key);
    ASSERT_EQ(status_of(bind(7, window, next)), Status::success);
    submit(recv(8, 64));
    until([&] { return runtime.worker_counters(0).grants.value() > 1; });
    submit(send_with_inv(9, next));
    const auto again = of(await(2), b.handle(), true);
    ASSERT_EQ(again.size(), 1u);
    expect_told(again[0], next);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 10, next)), Status::rem_access_err);
}

TEST_F(Windows, ASendWithInvalidateThatIsFlushedIsToldAndEndsNothing) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    submit({use(Opcode::rdma_write, 2, key ^ 0x100), send_with_inv(3, key).unsignaled(), send_with_inv(4, key)});
    const auto completions = await(3);
    ASSERT_EQ(completions.size(), 3u);
    EXPECT_EQ(completions[0].status, Status::rem_access_err);
    for (std::uint64_t i = 1; i < 3; ++i) {
        EXPECT_EQ(completions[i].tag, 2 + i);
        EXPECT_EQ(completions[i].status, Status::wr_flush_err);
        EXPECT_EQ(completions[i].opcode, CompletionOpcode::send);
    }
    EXPECT_EQ(session.retired(a.handle()), 0u);
    EXPECT_EQ(window.rkey(), key);
}

TEST_F(Windows, ASendCannotInvalidateTheWindowOfAnotherQueuePair) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    const QueuePair its_user = std::move(a);
    const QueuePair bound_on = std::move(b);
    connect_pair();
    submit(recv(2, 64));
    submit(send_with_inv(3, key));
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].status, expected(Status::rem_inv_req_err, Status::success));
    WorkRequest request = use(Opcode::rdma_write, 4, key);
    request.qp = its_user.handle();
    EXPECT_EQ(status_of(request), expected(Status::success, Status::rem_access_err));
}

TEST_F(Windows, ASendThatInvalidatesAnUnknownKeyFailsAtItsReceiver) {
    connect_pair();
    submit(recv(1, 64));
    submit(recv(2, 64));
    submit(send_with_inv(3, 0xfffffe01));
    const auto completions = await(3);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(sent[0].status, Status::success);
    EXPECT_EQ(received[0].tag, 1u);
    EXPECT_EQ(received[0].status, Status::rem_inv_req_err);
    EXPECT_EQ(received[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.state(b.handle()), QpState::error);
}

TEST_F(Windows, AnUnknownKeyCannotBeInvalidated) {
    connect_pair();
    EXPECT_EQ(status_of(invalidate(1, 0xfffffe01)), expected(Status::mw_bind_err, Status::loc_qp_op_err));
    EXPECT_EQ(session.state(b.handle()), QpState::error);
}

TEST_F(Windows, TypeTwoIsForTheQueuePairThatItWasBoundOnAndTypeOneForAll) {
    for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
        MemoryWindow window;
        const std::uint32_t key = bind_new(window, type);
        QueuePair bound_on = std::move(b);
        QueuePair its_user = std::move(a);
        connect_pair();
        EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key)),
                  type == WindowType::type_1 ? Status::success : Status::rem_access_err);
        WorkRequest request = use(Opcode::rdma_write, 3, key);
        request.qp = its_user.handle();
        EXPECT_EQ(status_of(request), Status::success);
    }
}

TEST_F(Windows, OnAnUnreliableConnectionOpenTheirRangeToo) {
    QueuePairOptions uc = shape();
    uc.type = QpType::uc;
    for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
        connect_pair(uc, {});
        MemoryWindow window = runtime.create_memory_window(session, type);
        const std::uint32_t key = next_rkey(window.rkey());
        fill(region, 9);
        // The write completes successfully whether or not it was allowed. The message behind the write arrives after
        // the peer has carried out or dropped the write.
        const auto write = [&] {
            submit(recv(1, 64));
            submit({use(Opcode::rdma_write, 2, key, kBegin, kLength), send(3, 8)});
            EXPECT_EQ(await(3).size(), 3u);
            return std::memcmp(region.data() + kBegin, local.data(), kLength) == 0;
        };
        EXPECT_FALSE(write()) << "not bound yet";
        ASSERT_EQ(status_of(bind(4, window, key)), Status::success);
        EXPECT_TRUE(write());
        EXPECT_EQ(session.try_submit(send_with_inv(5, key)), Refusal::bad_opcode) << "no packet could carry the key";
        if (type == WindowType::type_1) {
            continue;
        }
        const Status ended = status_of(invalidate(6, key));
        EXPECT_EQ(ended, expected(Status::success, Status::loc_qp_op_err));
        if (ended == Status::success) {
            fill(region, 9);
            EXPECT_FALSE(write());
        }
    }
}

TEST_F(Windows, TypeOneMovesFromBindToBind) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window, WindowType::type_1);
    WorkRequest moved = bind(2, window, 0);
    moved.remote_addr = region.addr() + 8192;
    submit(moved);
    const std::uint32_t next = await_one().window_rkey;
    EXPECT_EQ(next, next_rkey(key));
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 3, next, 8192)), Status::success);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 4, key, kBegin)), Status::rem_access_err);
}

TEST_F(Windows, WhatTheSpecificationForbidsIsABindErrorAndTheQueuePairsEnd) {
    MemoryRegion unwritable =
        runtime.allocate(kBytes, Access{.local_write = false, .remote_read = true, .window_bind = true});
    const struct {
        const char* what;
        const MemoryRegion& region;
        std::uint64_t length;
    } cases[] = {
        {"beyond the region", region, kBytes - kBegin + 1},
        {"nothing", region, 0},
        {"remote write without local write", unwritable, kLength},
    };
    for (const auto& test : cases) {
        SCOPED_TRACE(test.what);
        connect_pair();
        MemoryWindow window = runtime.create_memory_window(session);
        const std::uint32_t key = window.rkey();
        WorkRequest forbidden = bind(1, window, next_rkey(key));
        forbidden.bind = {window.handle(), test.region.handle(), test.length};
        forbidden.remote_addr = test.region.addr() + kBegin;
        submit({forbidden, invalidate(2, key)});
        const auto completions = await(2);
        ASSERT_EQ(completions.size(), 2u);
        EXPECT_EQ(completions[0].tag, 1u);
        EXPECT_EQ(completions[0].status, Status::mw_bind_err);
        EXPECT_EQ(completions[0].opcode, CompletionOpcode::bind_mw);
        EXPECT_EQ(completions[1].status, Status::wr_flush_err);
        EXPECT_EQ(session.state(b.handle()), QpState::error);
        EXPECT_EQ(window.rkey(), key);
    }
}

TEST_F(Windows, ABoundTypeTwoWindowIsNotBoundAgain) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    EXPECT_EQ(status_of(bind(2, window, next_rkey(key))), Status::mw_bind_err);
    EXPECT_EQ(window.rkey(), key);
}

TEST_F(Windows, ABindOfWhatIsNotThereIsRefusedAndTheQueuePairLivesOn) {
    connect_pair();
    MemoryWindow window = runtime.create_memory_window(session);
    ProtectionDomain other = runtime.create_protection_domain();
    MemoryWindow foreign_window = runtime.create_memory_window(session, WindowType::type_2, "", &other);
    MemoryRegion foreign_region = runtime.allocate(4096, bindable(), "", &other);
    MemoryWindow gone = runtime.create_memory_window(session);
    const MwHandle stale = gone.handle();
    gone.deallocate();
    EXPECT_FALSE(remote.handle().valid()) << "registered without Access::window_bind";

    WorkRequest request = bind(1, window, 1);
    for (const WindowBind& operands :
         {WindowBind{stale, region.handle(), kLength}, WindowBind{foreign_window.handle(), region.handle(), kLength},
          WindowBind{window.handle(), foreign_region.handle(), kLength},
          WindowBind{window.handle(), remote.handle(), kLength}}) {
        request.bind = operands;
        EXPECT_EQ(status_of(request), Status::request_refused);
    }
    EXPECT_EQ(status_of(bind(2, window, next_rkey(window.rkey()))), Status::success);
    window.deallocate();
}

TEST_F(Windows, ARegionIsBusyWhileAWindowIsBoundToIt) {
    MemoryWindow window;
    const std::uint32_t key = bind_new(window);
    try {
        region.deregister();
        FAIL() << "was deregistered";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), expected(EBUSY, EINVAL)) << error.what();
    }
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 2, key)), Status::success);
    window.deallocate();
    EXPECT_NO_THROW(region.deregister());
}

TEST_F(Windows, WindowAndRegionStayWhileABindIsInFlight) {
    connect_pair(shape(), {.timeout = 16, .retry_count = 3});
    MemoryWindow window = runtime.create_memory_window(session);
    ASSERT_TRUE(a.close());
    WorkRequest unanswered = rdma(Opcode::rdma_read, 1, 8);  // fails after a second; until then requests behind it wait
    unanswered.qp = b.handle();
    // The fence is for Soft-RoCE. If the bind is unfenced, Soft-RoCE retries the read for ever, and neither request
    // completes.
    WorkRequest fenced = bind(2, window, next_rkey(window.rkey()));
    fenced.flags |= kFence;
    submit({unanswered, fenced});
    EXPECT_THROW(window.deallocate(), Error);
    EXPECT_THROW(region.deregister(), Error);
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].status, Status::retry_exc_err);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
    EXPECT_NO_THROW(window.deallocate());
    EXPECT_NO_THROW(region.deregister());
}

TEST_F(Windows, OutliveTheQueuePairThatTheyWereBoundOnUnbound) {
    MemoryWindow window;
    bind_new(window);
    EXPECT_TRUE(b.close());
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
    EXPECT_TRUE(a.close());
    connect_pair();
    const std::uint32_t key = next_rkey(window.rkey());
    ASSERT_EQ(status_of(bind(2, window, key)), Status::success);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 3, key)), Status::success);
    window.deallocate();
    region.deregister();
}

TEST_F(Windows, AreUnboundByTheResetOfTheQueuePairThatTheyWereBoundOn) {
    MemoryWindow window;
    const std::uint32_t before = bind_new(window);
    EXPECT_TRUE(b.reset());
    EXPECT_TRUE(a.reset());
    const QpInfo info_a = a.info();
    const QpInfo info_b = b.info();
    a.connect(info_b);
    b.connect(info_a);
    std::uint32_t key = next_rkey(window.rkey());
    if (key == before) {
        key = next_rkey(key);
    }
    ASSERT_EQ(status_of(bind(2, window, key)), Status::success);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 3, key)), Status::success);
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 4, before)), Status::rem_access_err);
    window.deallocate();
    region.deregister();
}

TEST_F(Windows, KeepTheOrderOfTheirSendQueue) {
    connect_pair();
    MemoryWindow window = runtime.create_memory_window(session);
    const std::uint32_t key = next_rkey(window.rkey());
    WorkRequest write = rdma(Opcode::rdma_write, 1, 32 * 1024);
    write.qp = b.handle();
    WorkRequest read = rdma(Opcode::rdma_read, 2, 32 * 1024);
    read.qp = b.handle();
    WorkRequest told = send(4, 8);
    told.qp = b.handle();
    WorkRequest receive = recv(5, 64);
    receive.qp = a.handle();
    submit(receive);
    submit({write, read, bind(3, window, key), told});
    const auto completions = await(5);
    const auto sends = of(completions, b.handle(), false);
    ASSERT_EQ(sends.size(), 4u);
    for (std::uint64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(sends[i].tag, i + 1);
        EXPECT_EQ(sends[i].status, Status::success);
    }
    EXPECT_EQ(status_of(use(Opcode::rdma_write, 6, key)), Status::success) << "the peer was told after the bind";
}

}  // namespace
}  // namespace pollcore::testing
