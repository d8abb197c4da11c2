// Data that arrives: sends, writes, reads and atomics, many lengths, several SGEs, immediates, and the order of
// messages.
#include <algorithm>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class Transfer : public Conformance {
protected:
    Transfer() { connect_pair(); }
};

constexpr std::uint32_t kLengths[] = {0, 1, 7, 8, 64, 255, 1023, 1024, 1025, 4096, 5000, 40000};

TEST_F(Transfer, ASendPutsItsBytesIntoTheReceiveThatWaits) {
    for (const std::uint32_t length : kLengths) {
        fill(remote, 9);
        submit(recv(1, kBytes));
        submit(send(2, length));
        const auto completions = await(2);
        const auto sent = of(completions, a.handle(), false);
        const auto received = of(completions, b.handle(), true);
        ASSERT_EQ(sent.size(), 1u);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(sent[0].status, Status::success);
        EXPECT_EQ(sent[0].opcode, CompletionOpcode::send);
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].opcode, CompletionOpcode::recv);
        EXPECT_EQ(received[0].tag, 1u);
        EXPECT_EQ(received[0].byte_len, length);
        EXPECT_FALSE(received[0].flags & kWithImm);
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), length), 0) << length << " bytes";
    }
}

TEST_F(Transfer, TheImmediateThatOneSidePassesIsTheNumberThatTheOtherSees) {
    submit(recv(1, 64));
    WorkRequest request = send(2, 8);
    request.opcode = Opcode::send_with_imm;
    request.imm_data = 0x01020304;
    submit(request);
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_TRUE(received[0].flags & kWithImm);
    EXPECT_EQ(received[0].imm_data, 0x01020304u);
}

TEST_F(Transfer, AWriteLandsWithoutAReceive) {
    for (const std::uint32_t length : kLengths) {
        fill(remote, 9);
        submit(rdma(Opcode::rdma_write, 1, length));
        const Completion completion = await_one();
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.opcode, CompletionOpcode::rdma_write);
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), length), 0) << length << " bytes";
        if (length < kBytes) {
            EXPECT_EQ(remote.data()[length], static_cast<std::byte>(length * 31 + (length >> 8) + 9));
        }
    }
}

TEST_F(Transfer, AWriteWithImmediateTakesAReceiveButNoneOfItsBuffer) {
    fill(remote, 9);
    submit(recv(1, 64, 8192));
    WorkRequest request = rdma(Opcode::rdma_write_with_imm, 2, 100);
    request.imm_data = 77;
    submit(request);
    const auto completions = await(2);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].status, Status::success);
    EXPECT_EQ(received[0].opcode, CompletionOpcode::recv_rdma_with_imm);
    EXPECT_TRUE(received[0].flags & kWithImm);
    EXPECT_EQ(received[0].imm_data, 77u);
    EXPECT_EQ(received[0].byte_len, 100u);
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), 100), 0);
    EXPECT_EQ(remote.data()[8192], static_cast<std::byte>(std::size_t{8192} * 31 + 32 + 9));
}

TEST_F(Transfer, AReadBringsTheRemoteBytes) {
    for (const std::uint32_t length : kLengths) {
        fill(local, 9);
        submit(rdma(Opcode::rdma_read, 1, length));
        const Completion completion = await_one();
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.opcode, CompletionOpcode::rdma_read);
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), length), 0) << length << " bytes";
    }
}

TEST_F(Transfer, ACompareAndSwapSwapsOnlyWhatItFound) {
    const std::uint64_t start = 0x1111222233334444;
    std::memcpy(remote.data(), &start, sizeof(start));
    WorkRequest request = rdma(Opcode::atomic_cmp_and_swp, 1, 8);
    request.compare_add = start;
    request.swap = 99;
    submit(request);
    EXPECT_EQ(await_one().opcode, CompletionOpcode::comp_swap);
    std::uint64_t value = 0;
    std::memcpy(&value, local.data(), sizeof(value));
    EXPECT_EQ(value, start);
    std::memcpy(&value, remote.data(), sizeof(value));
    EXPECT_EQ(value, 99u);

    submit(request);  // the compared value has changed, so nothing is swapped
    EXPECT_EQ(await_one().status, Status::success);
    std::memcpy(&value, local.data(), sizeof(value));
    EXPECT_EQ(value, 99u);
    std::memcpy(&value, remote.data(), sizeof(value));
    EXPECT_EQ(value, 99u);
}

TEST_F(Transfer, AFetchAndAddReturnsWhatWasThere) {
    const std::uint64_t start = ~std::uint64_t{0} - 1;
    std::memcpy(remote.data(), &start, sizeof(start));
    for (std::uint64_t i = 0; i < 4; ++i) {
        WorkRequest request = rdma(Opcode::atomic_fetch_and_add, i, 8);
        request.compare_add = 1;
        submit(request);
        const Completion completion = await_one();
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.opcode, CompletionOpcode::fetch_add);
        std::uint64_t value = 0;
        std::memcpy(&value, local.data(), sizeof(value));
        EXPECT_EQ(value, start + i);
    }
}

TEST_F(Transfer, PiecesAreGatheredAndScatteredInOrder) {
    const std::vector<Sge> from{local_sge(10, 1000), local_sge(0), local_sge(100, 0), local_sge(3, 500)};
    const std::vector<Sge> into{remote_sge(1, 7), remote_sge(50, 2000), remote_sge(100, 300)};
    ASSERT_EQ(session.try_submit(recv(1, 0), into), Refusal::none);
    ASSERT_EQ(session.try_submit(send(2, 0), from), Refusal::none);
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    std::vector<std::byte> sent;
    for (const Sge& sge : from) {
        const auto* at = local.data() + (sge.addr - local.addr());
        sent.insert(sent.end(), at, at + sge.length);
    }
    std::vector<std::byte> got;
    for (const Sge& sge : into) {
        const auto* at = remote.data() + (sge.addr - remote.addr());
        got.insert(got.end(), at, at + sge.length);
    }
    got.resize(sent.size());
    EXPECT_EQ(sent, got);
}

TEST_F(Transfer, AnInlinePayloadIsTheCallersAgainAtOnce) {
    for (const std::size_t length : {0u, 1u, 56u, 64u}) {
        std::vector<std::byte> payload(length, static_cast<std::byte>(length + 5));
        const std::vector<std::byte> sent = payload;
        submit(recv(1, 128));
        ASSERT_EQ(session.try_submit_inline(send(2, 0), payload), Refusal::none);
        payload.assign(length, std::byte{0});
        const auto received = of(await(2), b.handle(), true);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].byte_len, length);
        EXPECT_TRUE(std::equal(sent.begin(), sent.end(), remote.data()));
    }
}

TEST_F(Transfer, AMessageWithNoSgeIsEmpty) {
    WorkRequest empty = send(2, 0);
    empty.num_sge = 0;
    WorkRequest receive = recv(1, 0);
    receive.num_sge = 0;
    submit(receive);
    submit(empty);
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.byte_len, 0u);
    }
}

TEST_F(Transfer, CompletionsOfAQueueComeInPostOrder) {
    constexpr std::uint64_t kMessages = 500;
    std::uint64_t sent = 0;
    std::uint64_t posted = 0;
    std::uint64_t seen_sent = 0;
    std::uint64_t seen_received = 0;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((seen_sent < kMessages || seen_received < kMessages) && std::chrono::steady_clock::now() < deadline) {
        if (posted < kMessages && session.try_submit(recv(posted, 64)) == Refusal::none) {
            ++posted;
        }
        if (sent < posted && session.try_submit(send(sent, 16)) == Refusal::none) {
            ++sent;
        }
        Completion some[8];
        const std::size_t n = session.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(some[i].status, Status::success);
            ASSERT_EQ(some[i].tag, some[i].from_recv_queue() ? seen_received++ : seen_sent++);
        }
        if (n == 0) {
            test::give_way();
        }
    }
    EXPECT_EQ(seen_sent, kMessages);
    EXPECT_EQ(seen_received, kMessages);
}

TEST_F(Transfer, UnsignaledWorkIsRetiredBehindTheNextSignaledOne) {
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        submit(rdma(Opcode::rdma_write, tag, 8, 0));
    }
    submit(rdma(Opcode::rdma_write, 5, 8));
    EXPECT_EQ(await_one().tag, 5u);
    EXPECT_EQ(session.retired(a.handle()), 5u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Transfer, UnsignaledWorkAloneGoesOnForEver) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t accepted = 0;
    while (accepted < 1000 && std::chrono::steady_clock::now() < deadline) {
        if (session.try_submit(rdma(Opcode::rdma_write, accepted, 8, 0)) == Refusal::none) {
            ++accepted;
        } else {
            test::give_way();
        }
        Completion none;
        ASSERT_EQ(session.poll({&none, 1}), 0u);
    }
    EXPECT_EQ(accepted, 1000u);
}

TEST_F(Transfer, AFencedReadIsDoneBeforeWhatFollows) {
    submit(rdma(Opcode::rdma_read, 1, 4096));
    submit(rdma(Opcode::rdma_write, 2, 8, kSignaled | kFence));
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[1].tag, 2u);
    EXPECT_EQ(completions[1].status, Status::success);
}

class SharedTransfer : public Conformance {
protected:
    SharedTransfer() : other(runtime.open_session()) {
        QueuePairOptions options = shape();
        options.shares.push_back({.session = &other, .send_depth = 16});
        options.separate_cqs = true;
        connect_pair(options, PathAttributes{});
    }
    Session other;
};

TEST_F(SharedTransfer, SessionsThatPostToOneQpGetTheirOwnCompletionsBack) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(session, rdma(Opcode::rdma_write, 100 + tag, 8));
        submit(other, rdma(Opcode::rdma_write, 200 + tag, 8));
    }
    const auto mine = await(session, 10);
    const auto others = await(other, 10);
    ASSERT_EQ(mine.size(), 10u);
    ASSERT_EQ(others.size(), 10u);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        EXPECT_EQ(mine[tag].tag, 100 + tag);
        EXPECT_EQ(others[tag].tag, 200 + tag);
    }
    EXPECT_EQ(other.try_submit(recv(1, 8)), Refusal::not_receiver);
}

class TwoWorkers : public Conformance {
protected:
    TwoWorkers() : Conformance(two()), second(runtime.open_session({.worker = "w1"})) {
        a = runtime.create_queue_pair(shape());
        QueuePairOptions options = shape();
        options.shares = {{.session = &second, .send_depth = 64}};
        b = runtime.create_queue_pair(options);
        const QpInfo info_a = a.info();
        // The worker that posts the receives may wait for a CPU longer than six RNR retries take, so the number of
        // retries is unlimited.
        const PathAttributes path{.rnr_retry = 7};
        a.connect(b.info(), path);
        b.connect(info_a, path);
    }
    static Config two() {
        Config config = test_config(test::last_cpu() > 0 ? 2 : 1);
        return config;
    }
    Session second;
};

TEST_F(TwoWorkers, MessagesGoBetweenQueuePairsOfDifferentWorkers) {
    ASSERT_NE(session.worker(), second.worker());
    EXPECT_EQ(second.worker_name(), "w1");
    const Session third = runtime.open_session({.worker = std::string(session.worker_name())});
    EXPECT_EQ(third.worker(), session.worker());
    for (std::uint64_t tag = 0; tag < 50; ++tag) {
        submit(second, recv(tag, 64));
        submit(session, send(tag, 24));
        EXPECT_EQ(await_one().status, Status::success);
        const auto received = await(second, 1);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].tag, tag);
        EXPECT_EQ(received[0].byte_len, 24u);
    }
}

}  // namespace
}  // namespace pollcore::testing
