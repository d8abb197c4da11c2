// Tests which work requests the verbs allow and what a completion proves: order, unsignaled work, fences, lengths,
// several SGEs, immediates and limits.
#include <algorithm>
#include <array>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class WorkRequests : public Conformance {
protected:
    static constexpr std::uint32_t kSges = 4;     // sges_max of shape()
    static constexpr std::uint32_t kInline = 64;  // inline_max of shape()
    WorkRequests() { connect_pair(); }

    [[nodiscard]] std::uint64_t word(const MemoryRegion& memory, std::size_t at) const {
        std::uint64_t value = 0;
        std::memcpy(&value, memory.data() + at, sizeof(value));
        return value;
    }
    static void set_word(MemoryRegion& memory, std::size_t at, std::uint64_t value) {
        std::memcpy(memory.data() + at, &value, sizeof(value));
    }
    [[nodiscard]] std::vector<std::byte> copy(const MemoryRegion& memory) const {
        return {memory.data(), memory.data() + memory.size()};
    }
    void expect_all_succeed(std::size_t n) {
        for (const Completion& completion : await(n)) {
            EXPECT_EQ(completion.status, Status::success) << "tag " << completion.tag;
        }
    }
};

// ---- Queue pairs of other sessions ----

TEST_F(WorkRequests, WithoutAShareAreRefusedAsNoShareAndWithAnOldHandleAsStale) {
    Session other = runtime.open_session();
    const WorkRequest message = send(1, 8);  // names queue pair a
    const WorkRequest receive = recv(2, 8);  // names queue pair b
    EXPECT_EQ(other.try_submit(message), Refusal::no_share);
    EXPECT_EQ(other.try_submit(receive), Refusal::no_share);
    EXPECT_EQ(other.state(a.handle()), QpState::closed);
    WorkRequest of_none = message;
    of_none.qp.index = static_cast<std::uint16_t>(message.qp.index + 100);
    EXPECT_EQ(other.try_submit(of_none), Refusal::stale_handle);

    EXPECT_TRUE(a.reset());
    EXPECT_EQ(other.try_submit(message), Refusal::stale_handle);
    EXPECT_EQ(other.try_submit(send(3, 8)), Refusal::no_share) << "with a's handle since the reset";
    EXPECT_EQ(session.try_submit(message), Refusal::stale_handle);
    const WorkRequest after_reset = send(4, 8);
    EXPECT_TRUE(a.close());
    EXPECT_EQ(other.try_submit(after_reset), Refusal::stale_handle);
    EXPECT_EQ(session.try_submit(after_reset), Refusal::stale_handle);
    EXPECT_EQ(other.try_submit(receive), Refusal::no_share) << "b is there";
}

// ---- Completions and order ----

class ManyQueuePairs : public Conformance, public ::testing::WithParamInterface<bool> {};

TEST_P(ManyQueuePairs, SharingCqsKeepTheOrderOfEachOfTheirQueues) {
    QueuePairOptions options = shape();
    options.separate_cqs = GetParam();
    constexpr std::size_t kPairs = 3;  // few enough that all their queues fit into one CQ
    constexpr std::uint64_t kMessages = 60;
    std::array<QueuePair, kPairs> near;
    std::array<QueuePair, kPairs> far;
    for (std::size_t i = 0; i < kPairs; ++i) {
        near[i] = runtime.create_queue_pair(options);
        far[i] = runtime.create_queue_pair(options);
        near[i].connect(far[i].info());
        far[i].connect(near[i].info());
    }
    // A tag contains the pair and the message's number.
    std::array<std::uint64_t, kPairs> sent{};
    std::array<std::uint64_t, kPairs> seen_sent{};
    std::array<std::uint64_t, kPairs> seen_received{};
    std::size_t left = 2 * kPairs * kMessages;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (left > 0 && std::chrono::steady_clock::now() < deadline) {
        for (std::size_t i = 0; i < kPairs; ++i) {
            if (sent[i] == kMessages) {
                continue;
            }
            WorkRequest receive = recv(i << 32 | sent[i], 64, 128 * i);
            receive.qp = far[i].handle();
            WorkRequest message = send(i << 32 | sent[i], static_cast<std::uint32_t>(sent[i]));
            message.qp = near[i].handle();
            // The message is submitted only if the receive before it was accepted, so that no message finds a peer that
            // is not ready.
            if (session.figures().in_flight() < 100 && session.try_submit(receive) == Refusal::none) {
                ASSERT_EQ(session.try_submit(message), Refusal::none);
                ++sent[i];
            }
        }
        Completion some[7];
        const std::size_t n = session.poll(some);
        for (std::size_t k = 0; k < n; ++k) {
            const std::size_t pair = some[k].tag >> 32;
            ASSERT_LT(pair, kPairs);
            ASSERT_EQ(some[k].status, Status::success);
            ASSERT_EQ(some[k].qp, (some[k].from_recv_queue() ? far : near)[pair].handle());
            auto& next = (some[k].from_recv_queue() ? seen_received : seen_sent)[pair];
            ASSERT_EQ(some[k].tag & 0xffffffff, next);
            if (some[k].from_recv_queue()) {
                ASSERT_EQ(some[k].byte_len, next);
            }
            ++next;
        }
        left -= n;
        if (n == 0) {
            test::give_way();
        }
    }
    EXPECT_EQ(left, 0u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Cqs, ManyQueuePairs, ::testing::Bool(),
                         [](const auto& two) { return std::string(two.param ? "Separate" : "Shared"); });

// ---- Unsignaled work ----

TEST_F(WorkRequests, UnsignaledOnesAreSignaledBeforeTheyFillTheSendQueue) {
    constexpr std::uint64_t kWrites = 500;  // many times the queue depth
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t accepted = 0;
    while (accepted < kWrites && std::chrono::steady_clock::now() < deadline) {
        const Refusal refusal = session.try_submit(rdma(Opcode::rdma_write, accepted, 8, 0));
        if (refusal == Refusal::none) {
            ++accepted;
        } else {
            ASSERT_EQ(refusal, Refusal::send_queue_full);
            test::give_way();
        }
    }
    ASSERT_EQ(accepted, kWrites);
    // The test signaled no request, and the send queue has 64 places. To free places for more than 64 writes, the
    // worker has to signal some requests itself.
    const std::uint64_t forced = runtime.worker_counters(0).forced_signals.value();
    EXPECT_GE(forced, (kWrites - 64) / 64);
    EXPECT_LE(forced, kWrites / 4) << "unsignaled work is hardly unsignaled any more";
    EXPECT_GE(session.retired(a.handle()), kWrites - 64);
    Completion none;
    EXPECT_EQ(session.poll({&none, 1}), 0u) << "a success that nobody asked to hear of";
    EXPECT_TRUE(a.close());  // the remaining requests are retired or complete
    const SessionFigures figures = session.figures();
    while (session.poll({&none, 1}) != 0) {
        EXPECT_EQ(none.status, Status::wr_flush_err);
    }
    EXPECT_EQ(session.figures().in_flight(), 0u) << figures.in_flight() << " before the last poll";
}

TEST_F(WorkRequests, ABufferOfAnUnsignaledOneIsFreeOnceItCountsAsRetired) {
    // Few buffers serve many writes. The test refills a buffer as soon as the retired count allows it. No write may
    // then arrive with the data of a later write.
    constexpr std::uint64_t kBuffers = 8;
    constexpr std::uint64_t kWrites = 400;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (std::uint64_t i = 0; i < kWrites; ++i) {
        // Wait until the write that last used this buffer, and all writes before it, are retired.
        while (i >= kBuffers && session.retired(a.handle()) < i - kBuffers + 1) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            if (session.figures().in_flight() == kBuffers) {
                // All writes wait for a signal. The completion of a signaled write without data retires them.
                WorkRequest nudge = rdma(Opcode::rdma_write, 9999, 0);
                nudge.num_sge = 0;
                submit(nudge);
                EXPECT_EQ(await_one().tag, 9999u);
            }
            test::give_way();
        }
        const std::size_t buffer = 8 * (i % kBuffers);
        set_word(local, buffer, 0xabc000 + i);
        WorkRequest write = rdma(Opcode::rdma_write, i, 8, 0);
        write.sge = local_sge(8, buffer);
        write.remote_addr = remote.addr() + 8 * i;
        submit(write);
    }
    submit(rdma(Opcode::rdma_read, kWrites, 8));
    EXPECT_EQ(await_one().tag, kWrites);
    for (std::uint64_t i = 0; i < kWrites; ++i) {
        ASSERT_EQ(word(remote, 8 * i), 0xabc000 + i) << "write " << i;
    }
    EXPECT_EQ(session.retired(a.handle()), kWrites);
}

TEST_F(WorkRequests, AnUnsignaledOneThatFailsCompletes) {
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8, 0);
    bad.rkey ^= 0xabcd00;
    submit({rdma(Opcode::rdma_read, 1, 8, 0), bad, rdma(Opcode::rdma_write, 3, 8, 0)});
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].tag, 2u);
    EXPECT_EQ(completions[0].status, Status::rem_access_err);
    EXPECT_EQ(completions[1].tag, 3u);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.retired(a.handle()), 1u) << "the one that succeeded";
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

// ---- Fence and solicited ----

TEST_F(WorkRequests, AFencedOneSendsWhatTheReadBeforeItBrought) {
    for (std::uint64_t round = 0; round < 30; ++round) {
        constexpr std::uint32_t kLength = 3000;
        constexpr std::size_t kFrom = 0;
        constexpr std::size_t kTo = 32768;
        fill(remote, static_cast<unsigned>(round));
        std::memset(local.data(), 0, kLength);
        WorkRequest read = rdma(Opcode::rdma_read, 3 * round, kLength, 0);
        read.remote_addr = remote.addr() + kFrom;
        WorkRequest echo = rdma(Opcode::rdma_write, 3 * round + 1, kLength, kSignaled | kFence);
        echo.remote_addr = remote.addr() + kTo;
        submit(read);
        submit(echo);
        EXPECT_EQ(await_one().status, Status::success);
        ASSERT_EQ(std::memcmp(remote.data() + kTo, remote.data() + kFrom, kLength), 0) << "round " << round;
    }
}

TEST_F(WorkRequests, AFencedOneSendsWhatTheAtomicBeforeItBrought) {
    for (std::uint64_t round = 0; round < 30; ++round) {
        set_word(remote, 0, 1000 + round);
        set_word(local, 0, 0);
        WorkRequest add = rdma(Opcode::atomic_fetch_and_add, 1, 8, 0);
        add.compare_add = 5;
        submit(add);
        submit(recv(2, 64, 4096));
        submit(send(3, 8, kSignaled | kFence));
        expect_all_succeed(2);
        EXPECT_EQ(word(remote, 0), 1005 + round);
        ASSERT_EQ(word(remote, 4096), 1000 + round);
    }
}

TEST_F(WorkRequests, ASolicitedOneArrivesAsAnyOther) {
    submit(recv(1, 64));
    submit(send(2, 16, kSignaled | kSolicited));
    expect_all_succeed(2);
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), 16), 0);
    submit(recv(3, 64));
    WorkRequest with = rdma(Opcode::rdma_write_with_imm, 4, 16, kSignaled | kSolicited);
    with.imm_data = 5;
    submit(with);
    expect_all_succeed(2);
}

// ---- Lengths and pieces ----

TEST_F(WorkRequests, OneWithoutBytesMovesNothingAndCompletes) {
    const auto before_local = copy(local);
    const auto before_remote = copy(remote);
    for (const Opcode opcode :
         {Opcode::rdma_write, Opcode::rdma_read, Opcode::rdma_write_with_imm, Opcode::send, Opcode::send_with_imm}) {
        // Once without an SGE, and once with an SGE of length 0.
        for (const std::uint8_t num_sge : {std::uint8_t{0}, std::uint8_t{1}}) {
            const bool takes_receive = opcode != Opcode::rdma_write && opcode != Opcode::rdma_read;
            if (takes_receive) {
                submit(recv(1, 64));
            }
            WorkRequest empty = rdma(opcode, 2, 0);
            empty.num_sge = num_sge;
            empty.imm_data = has_imm(opcode) ? 0x55667788 : 0;
            submit(empty);
            for (const Completion& completion : await(takes_receive ? 2 : 1)) {
                EXPECT_EQ(completion.status, Status::success) << static_cast<int>(opcode);
                EXPECT_EQ(completion.byte_len, 0u) << static_cast<int>(opcode);
                if (completion.from_recv_queue() && has_imm(opcode)) {
                    EXPECT_EQ(completion.imm_data, 0x55667788u);
                }
            }
        }
    }
    EXPECT_EQ(copy(local), before_local);
    EXPECT_EQ(copy(remote), before_remote);
}

TEST_F(WorkRequests, OneWithoutBytesNeedsNoValidRkey) {
    // IBTA C9-88: if a request has no bytes, its key and address are not checked.
    WorkRequest nowhere = rdma(Opcode::rdma_write, 1, 0);
    nowhere.num_sge = 0;
    nowhere.remote_addr = 0;
    nowhere.rkey = 0;
    submit(nowhere);
    EXPECT_EQ(await_one().status, Status::success);
}

TEST_F(WorkRequests, PiecesAreGatheredForAWriteAndScatteredByARead) {
    const std::vector<Sge> pieces{local_sge(100, 9000), local_sge(1, 3), local_sge(3000, 20000), local_sge(7, 100)};
    std::vector<std::byte> together;
    for (const Sge& sge : pieces) {
        const std::byte* at = local.data() + (sge.addr - local.addr());
        together.insert(together.end(), at, at + sge.length);
    }
    ASSERT_EQ(session.try_submit(rdma(Opcode::rdma_write, 1, 0), pieces), Refusal::none);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_TRUE(std::equal(together.begin(), together.end(), remote.data()));

    fill(local, 77);
    ASSERT_EQ(session.try_submit(rdma(Opcode::rdma_read, 2, 0), pieces), Refusal::none);
    const Completion read = await_one();
    EXPECT_EQ(read.status, Status::success);
    EXPECT_EQ(read.byte_len, together.size());
    std::vector<std::byte> back;
    for (const Sge& sge : pieces) {
        const std::byte* at = local.data() + (sge.addr - local.addr());
        back.insert(back.end(), at, at + sge.length);
    }
    EXPECT_EQ(back, together);
}

TEST_F(WorkRequests, PiecesOfASendMayOverlap) {
    // The specification does not forbid that a send reads the same bytes twice.
    const std::vector<Sge> overlapping{local_sge(100, 0), local_sge(100, 50), local_sge(100, 0)};
    submit(recv(1, 4096));
    ASSERT_EQ(session.try_submit(send(2, 0), overlapping), Refusal::none);
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].status, Status::success);
    EXPECT_EQ(received[0].byte_len, 300u);
    EXPECT_EQ(std::memcmp(remote.data(), local.data(), 100), 0);
    EXPECT_EQ(std::memcmp(remote.data() + 100, local.data() + 50, 100), 0);
    EXPECT_EQ(std::memcmp(remote.data() + 200, local.data(), 100), 0);
}

TEST_F(WorkRequests, AsManyPiecesAsTheQueuePairTakesAndNotOneMore) {
    std::vector<Sge> from;
    std::vector<Sge> into;
    for (std::uint32_t i = 0; i < kSges; ++i) {
        from.push_back(local_sge(10 + i, 100 * i));
        into.push_back(remote_sge(64, 100 * i));
    }
    ASSERT_EQ(session.try_submit(recv(1, 0), into), Refusal::none);
    ASSERT_EQ(session.try_submit(send(2, 0), from), Refusal::none);
    expect_all_succeed(2);
    from.push_back(local_sge(1));
    into.push_back(remote_sge(1));
    EXPECT_EQ(session.try_submit(recv(3, 0), into), Refusal::too_many_sges);
    EXPECT_EQ(session.try_submit(send(4, 0), from), Refusal::too_many_sges);
    EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write, 5, 0), from), Refusal::too_many_sges);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(WorkRequests, AsMuchInlineAsTheQueuePairTakesAndNotOneByteMore) {
    std::array<std::byte, kInline + 1> payload{};
    std::fill(payload.begin(), payload.end(), std::byte{0x7e});
    const std::span<const std::byte> most(payload.data(), kInline);
    for (const Opcode opcode : {Opcode::rdma_write, Opcode::rdma_write_with_imm, Opcode::send, Opcode::send_with_imm}) {
        fill(remote, 3);
        const bool takes_receive = opcode != Opcode::rdma_write;
        if (takes_receive) {
            submit(recv(1, 128));
        }
        ASSERT_EQ(session.try_submit_inline(rdma(opcode, 2, 0), most), Refusal::none);
        expect_all_succeed(takes_receive ? 2 : 1);
        EXPECT_TRUE(std::equal(most.begin(), most.end(), remote.data()));
        EXPECT_EQ(session.try_submit_inline(rdma(opcode, 3, 0), payload), Refusal::inline_too_long);
    }
    EXPECT_NE(session.try_submit_inline(rdma(Opcode::rdma_read, 4, 0), most), Refusal::none);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

// An inline payload stands beside requests with SGEs in one call. The program may use its memory again at once.
TEST_F(WorkRequests, InlinePayloadsStandBesideOtherRequestsOfABurst) {
    for (const bool signaled : {true, false}) {
        fill(remote, 3);
        const std::vector<std::byte> before(local.data(), local.data() + 4096);
        std::array<std::array<std::byte, kInline>, 3> payloads;
        for (std::size_t i = 0; i < payloads.size(); ++i) {
            std::copy_n(local.data() + 1000 * i, kInline, payloads[i].begin());
        }
        const RemoteMemory to = remote.remote();
        const QpHandle qp = a.handle();
        submit(recv(21, 64, 8192));
        submit(recv(22, 64, 8256));
        submit(recv(23, 64, 8320));
        std::vector<WorkRequest> burst{
            WorkRequest::rdma_write(qp, local_sge(3000, 100), to).with_tag(1),
            WorkRequest::rdma_write(qp, {}, {to.addr + 4096, to.rkey}).with_inline(payloads[0]).with_tag(2),
            WorkRequest::send(qp, {}).with_inline(std::span(payloads[1]).first(16)).with_tag(3),
            WorkRequest::rdma_read(qp, local_sge(8, 5000), to).with_tag(4),
            WorkRequest::send_with_imm(qp, {}, 77).with_inline(std::span(payloads[2]).first(17)).with_tag(5),
            WorkRequest::send(qp, {}).with_inline({}).with_tag(6),
            WorkRequest::atomic_fetch_and_add(qp, local_sge(8, 5008), {to.addr + 16384, to.rkey}, 1).with_tag(7),
            WorkRequest::rdma_write(qp, local_sge(8, 200), {to.addr + 5000, to.rkey}).with_flags(kFence).with_tag(8)};
        if (!signaled) {
            for (std::size_t i = 0; i + 1 < burst.size(); ++i) {
                burst[i] = burst[i].unsignaled();
            }
        }
        submit(burst);
        for (auto& payload : payloads) {
            payload.fill(std::byte{0});
        }
        const auto completions = await(3 + (signaled ? 8 : 1));
        const auto received = of(completions, b.handle(), true);
        const auto sent = of(completions, a.handle(), false);
        for (std::size_t i = 0; i < sent.size(); ++i) {
            EXPECT_EQ(sent[i].tag, signaled ? i + 1 : 8);
            EXPECT_EQ(sent[i].status, Status::success);
        }
        ASSERT_EQ(received.size(), 3u);
        const std::array<std::uint32_t, 3> lengths{16, 17, 0};
        for (std::size_t i = 0; i < received.size(); ++i) {
            EXPECT_EQ(received[i].tag, 21 + i);
            EXPECT_EQ(received[i].status, Status::success);
            EXPECT_EQ(received[i].byte_len, lengths[i]);
        }
        EXPECT_EQ(received[1].imm_data, 77u);
        EXPECT_EQ(std::memcmp(remote.data(), before.data() + 100, 3000), 0);
        EXPECT_EQ(std::memcmp(remote.data() + 4096, before.data(), kInline), 0);
        EXPECT_EQ(std::memcmp(remote.data() + 8192, before.data() + 1000, 16), 0);
        EXPECT_EQ(std::memcmp(remote.data() + 8256, before.data() + 2000, 17), 0);
        EXPECT_EQ(std::memcmp(remote.data() + 5000, before.data() + 200, 8), 0);
        EXPECT_EQ(word(local, 5000), word(remote, 0));
        EXPECT_EQ(word(remote, 16384), word(local, 5008) + 1);
    }
    EXPECT_EQ(session.retired(a.handle()), 7u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(WorkRequests, ABurstEndsBeforeAnInlinePayloadThatIsRefused) {
    const std::array<std::byte, kInline + 1> payload{};
    const WorkRequest good = rdma(Opcode::rdma_write, 1, 8);
    const WorkRequest small = good.with_inline(std::span(payload).first(8));
    const std::array burst{good, small, good.with_inline(payload), good};
    const Submitted submitted = session.try_submit(burst);
    EXPECT_EQ(submitted.accepted, 2u);
    EXPECT_EQ(submitted.refusal, Refusal::inline_too_long);
    expect_all_succeed(2);
    EXPECT_EQ(session.try_submit(good.with_inline(payload)), Refusal::inline_too_long);
    ASSERT_EQ(session.try_submit(small), Refusal::none);
    expect_all_succeed(1);
    EXPECT_EQ(std::memcmp(remote.data(), payload.data(), 8), 0);
}

// ---- Immediates ----

TEST_F(WorkRequests, EveryImmediateIsTheSameNumberOnBothSides) {
    for (const Opcode opcode : {Opcode::send_with_imm, Opcode::rdma_write_with_imm}) {
        for (const std::uint32_t number : {0u, 1u, 0x01020304u, 0x80000000u, 0xffffffffu}) {
            submit(recv(1, 64));
            WorkRequest with = rdma(opcode, 2, 8);
            with.imm_data = number;
            submit(with);
            const auto received = of(await(2), b.handle(), true);
            ASSERT_EQ(received.size(), 1u);
            EXPECT_EQ(received[0].status, Status::success);
            EXPECT_TRUE(received[0].flags & kWithImm);
            EXPECT_EQ(received[0].imm_data, number);
        }
    }
    submit(recv(1, 64));
    submit(send(2, 8));
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_FALSE(received[0].flags & kWithImm) << "a message without an immediate, after messages with one";
}

TEST_F(WorkRequests, AWriteWithImmediateLeavesTheBufferOfItsReceiveUntouched) {
    constexpr std::size_t kAt = 16384;
    constexpr std::uint32_t kLength = 8192;
    const auto before = copy(remote);
    // The write has fewer or more bytes than the receive's buffer.
    for (const std::uint32_t written : {0u, 1u, 4096u, 9000u}) {
        submit(recv(1, kLength, kAt));
        WorkRequest with = rdma(Opcode::rdma_write_with_imm, 2, written);
        with.imm_data = written;
        submit(with);
        const auto received = of(await(2), b.handle(), true);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].opcode, CompletionOpcode::recv_rdma_with_imm);
        EXPECT_EQ(received[0].byte_len, written);
        EXPECT_EQ(std::memcmp(remote.data(), local.data(), written), 0);
        EXPECT_EQ(std::memcmp(remote.data() + kAt, before.data() + kAt, kLength), 0) << written << " bytes written";
    }
    WorkRequest none = recv(3, 0);  // such a receive needs no buffer at all
    none.num_sge = 0;
    submit(none);
    submit(rdma(Opcode::rdma_write_with_imm, 4, 100));
    expect_all_succeed(2);
}

}  // namespace
}  // namespace pollcore::testing
