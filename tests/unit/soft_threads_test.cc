// Engines that run in different threads. These tests are also meant for the thread sanitizer.
#include <algorithm>
#include <atomic>
#include <thread>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

constexpr std::uint64_t kMessages = 5000;

TEST(SoftThreads, two_engines_exchange_messages_whole_and_in_order) {
    const auto device = open_soft_device({});
    const auto left = device->create_thread_domain();
    const auto right = device->create_thread_domain();
    End a(*device, {.domain = left.get()});
    End b(*device, {.domain = right.get()});
    connect(a, b);
    std::atomic<int> running{2};
    const auto run = [&running](End& self, std::uint64_t mine, std::uint64_t theirs) {
        constexpr std::uint64_t kDepth = 16;
        constexpr std::uint32_t kWords = 200;  // 1600 bytes, which are two packets
        std::uint64_t posted = 0, sent = 0, received = 0;
        for (std::uint64_t i = 0; i < kDepth; ++i) {
            EXPECT_EQ(self.post_recv(i, {self.sge(65536 + i * 2048, 2048)}), 0);
        }
        while (sent < kMessages || received < kMessages) {
            if (posted < kMessages && posted - sent < kDepth) {
                const std::size_t slot = posted % kDepth * 256;
                for (std::uint32_t w = 0; w < kWords; ++w)
                    self.memory[slot + w] = mine + posted * kWords + w;
                if (self.post(posted, IBV_WR_SEND, {self.sge(slot * 8, kWords * 8)}) == 0)
                    ++posted;
            }
            if (const auto wc = End::poll(self.send_cq.get())) {
                if (wc->status != IBV_WC_SUCCESS || wc->wr_id != sent) {
                    ADD_FAILURE() << "send " << wc->wr_id << ": " << ibv_wc_status_str(wc->status);
                    break;
                }
                ++sent;
            }
            if (const auto wc = End::poll(self.recv_cq.get())) {
                if (wc->status != IBV_WC_SUCCESS || wc->wr_id != received % kDepth) {
                    ADD_FAILURE() << "receive " << wc->wr_id << ": " << ibv_wc_status_str(wc->status);
                    break;
                }
                const std::size_t word = (65536 + wc->wr_id * 2048) / 8;
                for (std::uint32_t w = 0; w < kWords; ++w) {
                    if (self.memory[word + w] != theirs + received * kWords + w) {
                        ADD_FAILURE() << "message " << received << " word " << w;
                        received = kMessages;
                        break;
                    }
                }
                ++received;
                EXPECT_EQ(self.post_recv(wc->wr_id, {self.sge(65536 + wc->wr_id * 2048, 2048)}), 0);
            }
        }
        // Continues to serve the peer until the peer is done, too.
        running.fetch_sub(1);
        while (running.load() != 0)
            (void)End::poll(self.send_cq.get());
    };
    std::thread other([&] { run(b, 1ull << 40, 1ull << 50); });
    run(a, 1ull << 50, 1ull << 40);
    other.join();
}

TEST(SoftThreads, an_application_may_poll_the_last_word_of_a_write) {
    const auto device = open_soft_device({});
    const auto left = device->create_thread_domain();
    const auto right = device->create_thread_domain();
    End a(*device, {.domain = left.get()});
    End b(*device, {.domain = right.get()});
    connect(a, b);
    constexpr std::uint64_t kRounds = 3000;
    std::atomic<bool> done{false};
    std::thread engine([&] {
        while (!done.load()) {
            (void)End::poll(b.recv_cq.get());
            std::this_thread::yield();  // there are three threads, but maybe only two CPUs
        }
    });
    std::thread reader([&] {
        std::atomic_ref<std::uint64_t> last(b.memory[7]);
        std::atomic_ref<std::uint64_t> answer(b.memory[100]);
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
            while (last.load(std::memory_order_acquire) != round)
                std::this_thread::yield();
            for (std::size_t i = 0; i < 7; ++i)
                EXPECT_EQ(b.memory[i], round);
            answer.store(round, std::memory_order_release);
        }
    });
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        for (std::size_t i = 0; i < 8; ++i)
            a.memory[i] = round;
        ASSERT_EQ(a.post(round, IBV_WR_RDMA_WRITE, {a.sge(0, 64)}, b.address(0), b.mr->rkey), 0);
        while (!End::poll(a.send_cq.get()))
            std::this_thread::yield();
        // The writer reads the answer over the wire and waits for it, so that it never overtakes the reader.
        do {
            ASSERT_EQ(a.post(0, IBV_WR_RDMA_READ, {a.sge(800, 8)}, b.address(800), b.mr->rkey), 0);
            while (!End::poll(a.send_cq.get()))
                std::this_thread::yield();
        } while (a.memory[100] != round);
    }
    reader.join();
    done.store(true);
    engine.join();
}

TEST(SoftThreads, atomics_of_two_engines_and_a_cpu_on_one_word_all_count) {
    const auto device = open_soft_device({});
    const auto left = device->create_thread_domain();
    const auto right = device->create_thread_domain();
    End a(*device, {.domain = left.get()}), a_peer(*device, {.domain = left.get()});
    End b(*device, {.domain = right.get()}), b_peer(*device, {.domain = right.get()});
    connect(a, a_peer);
    connect(b, b_peer);
    std::uint64_t word = 0;
    constexpr std::uint64_t kAdds = 5000;
    const auto run = [&word](End& self, End& peer) {
        const UniqueMr mr{self.device.register_memory(peer.pd.get(), &word, 8, 0, kAllAccess), {&self.device}};
        for (std::uint64_t i = 0; i < kAdds; ++i) {
            EXPECT_EQ(self.post_atomic(i, IBV_WR_ATOMIC_FETCH_AND_ADD, self.sge(0, 8), 0, mr->rkey, 1), 0);
            const auto wc = self.sent();
            if (!wc || wc->status != IBV_WC_SUCCESS) {
                ADD_FAILURE() << "atomic " << i;
                return;
            }
        }
    };
    std::thread first([&] { run(a, a_peer); });
    std::thread second([&] { run(b, b_peer); });
    for (std::uint64_t i = 0; i < kAdds; ++i)
        std::atomic_ref(word).fetch_add(1);
    first.join();
    second.join();
    EXPECT_EQ(word, 3 * kAdds);
}

TEST(SoftThreads, memory_is_the_owners_again_when_deregistering_returns) {
    const auto device = open_soft_device({});
    const auto left = device->create_thread_domain();
    const auto right = device->create_thread_domain();
    End mover(*device, {.domain = right.get()});
    std::atomic<bool> done{false};
    std::thread engine([&] {
        while (!done.load())
            (void)End::poll(mover.send_cq.get());
    });
    // The messages are so long that the receiving engine is usually in the middle of one when the region is
    // deregistered.
    constexpr std::uint32_t kSize = 128 * 1024;
    std::uint64_t cut_off = 0;
    // Continues until some messages were cut off in the middle, because that case is tested here. The number of rounds
    // depends on how the two threads run.
    for (std::uint64_t round = 0; round < 50 || (cut_off == 0 && round < 5000); ++round) {
        auto buffer = std::make_unique<std::uint64_t[]>(kSize / 8);
        const auto address = reinterpret_cast<std::uint64_t>(buffer.get());
        End a(*device, {.memory = kSize, .domain = left.get()});
        End b(*device, {.memory = 4096, .domain = right.get()});
        std::fill(a.memory.begin(), a.memory.end(), round + 1);
        connect(a, b, {}, IBV_MTU_4096);
        UniqueMr mr{device->register_memory(b.pd.get(), buffer.get(), kSize, address, kAllAccess), {device.get()}};
        for (std::uint64_t i = 0; i < 20; ++i) {
            ASSERT_EQ(a.post(i, IBV_WR_RDMA_WRITE, {a.sge(0, kSize)}, address, mr->rkey), 0);
        }
        // The device stores the last word of the first packet atomically. The load here is relaxed, because the
        // deregistration, and not this load, must order the engine's work before the work of this thread.
        const std::atomic_ref<std::uint64_t> first_packet(buffer[4096 / 8 - 1]);
        // The loop polls the sender, because the link may still be full of the last round's packets.
        while (first_packet.load(std::memory_order_relaxed) == 0)
            (void)End::poll(a.send_cq.get());
        mr.reset();
        // If the other thread's engine still used the buffer, this write would be a race or would hit freed memory.
        std::memset(buffer.get(), 0xff, kSize);
        buffer.reset();
        if (const auto wc = a.sent(); wc && wc->status == IBV_WC_REM_ACCESS_ERR)
            ++cut_off;
    }
    EXPECT_GT(cut_off, 0u);
    done.store(true);
    engine.join();
}

TEST(SoftThreads, one_qp_may_be_used_by_several_threads) {
    const auto device = open_soft_device({});
    End a(*device), b(*device);
    connect(a, b);
    std::atomic<std::uint64_t> completed{0};
    const auto run = [&] {
        ibv_wc wc{};
        for (std::uint64_t posted = 0; posted < 2000;) {
            if (a.post(posted, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey) == 0)
                ++posted;
            if (ibv_poll_cq(a.send_cq.get(), 1, &wc) == 1)
                completed.fetch_add(1);
        }
    };
    std::thread other(run);
    run();
    other.join();
    while (End::poll(a.send_cq.get()))
        completed.fetch_add(1);
    EXPECT_EQ(completed.load(), 4000u);
}

}  // namespace
}  // namespace pollcore::test
