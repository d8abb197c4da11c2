// Threads of one process that share completion queues, a shared receive queue, a completion channel, a protection
// domain and memory, as verbs allow it. Above all for the thread sanitizer, which sees this program and the library.
#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

class VerbsThreads : public Verbs {
protected:
    static constexpr std::uint64_t kSenders = 3;
    static constexpr std::uint64_t kMessages = 300;
    static constexpr std::uint64_t kReceive = 1u << 20;  // in the wr_id of receives
    static constexpr std::size_t kSlot = 64;

    void SetUp() override {
        Verbs::SetUp();
        channel_ = ibv_create_comp_channel(context_);
        ASSERT_NE(channel_, nullptr);
        send_cq_ = make_cq(2048);
        recv_cq_ = make_cq(2048, channel_);
        ibv_srq_init_attr init{};
        init.attr = {.max_wr = 1024, .max_sge = 1, .srq_limit = 0};
        srq_ = ibv_create_srq(pd_, &init);
        ASSERT_NE(srq_, nullptr);
        for (int fd : {channel_->fd, context_->async_fd}) {
            ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
        }
    }
    void TearDown() override {
        EXPECT_EQ(ibv_destroy_srq(srq_), 0);
        EXPECT_EQ(ibv_destroy_cq(send_cq_), 0);
        EXPECT_EQ(ibv_destroy_cq(recv_cq_), 0);
        EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
        Verbs::TearDown();
    }

    void require(bool holds, const char* what) {
        if (!holds && failures_.fetch_add(1) == 0) {
            ADD_FAILURE() << what;  // GoogleTest allows that in any thread
        }
    }
    [[nodiscard]] bool done() const {
        return (sent_ >= kSenders * kMessages && received_ >= kSenders * kMessages) || failures_ != 0 ||
               std::chrono::steady_clock::now() > until_;
    }

    void take_some() {
        ibv_wc wc[8];
        for (auto& [cq, count] : {std::pair{send_cq_, &sent_}, std::pair{recv_cq_, &received_}}) {
            const int got = ibv_poll_cq(cq, 8, wc);
            require(got >= 0, "a poll failed");
            for (int i = 0; i < got; ++i) {
                // Others are of queue pairs that were connected in vain.
                if (wc[i].wr_id != 0) {
                    require(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
                    ++*count;
                }
            }
        }
    }

    /// Sends its messages over a pair of its own, and takes whose completions it finds.
    void send_messages(std::uint64_t number) {
        ibv_qp* const a = make_qp(send_cq_, recv_cq_);
        ibv_qp* const b = number % 2 == 0 ? make_qp(send_cq_, recv_cq_) : make_qp(send_cq_, recv_cq_, IBV_QPT_RC, srq_);
        connect(a, b);
        for (std::uint64_t posted = 0; !done();) {
            if (posted < kMessages) {
                ibv_sge list = sge(kBytes / 2 + kSlot * number, kSlot);
                ibv_recv_wr wr{.wr_id = kReceive, .next = nullptr, .sg_list = &list, .num_sge = 1};
                ibv_recv_wr* bad = nullptr;
                const int error =
                    b->srq == nullptr ? ibv_post_recv(b, &wr, &bad) : ibv_post_srq_recv(b->srq, &wr, &bad);
                require(error == 0 || error == ENOMEM, "a receive was refused");
                if (error == 0) {
                    int refused = 0;
                    while ((refused = post_send(a, 1 + posted, kSlot * number, kSlot)) == ENOMEM && !done()) {
                        take_some();
                    }
                    require(refused == 0 || done(), "a send was refused");
                    ++posted;
                }
            }
            take_some();
            std::this_thread::yield();
        }
        require(ibv_destroy_qp(a) == 0, "a sender cannot be destroyed");
        require(ibv_destroy_qp(b) == 0, "a receiver cannot be destroyed");
    }
    void make_and_end() {
        while (!done()) {
            ibv_qp* const qp = make_qp(send_cq_, recv_cq_, IBV_QPT_UD);
            require(to_init(qp) == 0 && to_rtr(qp, 0) == 0 && to_rts(qp) == 0, "a queue pair does not come up");
            ibv_ah_attr there = way();
            ibv_ah* const ah = ibv_create_ah(pd_, &there);
            require(ah != nullptr && ibv_destroy_ah(ah) == 0, "an address handle");
            ibv_cq* const cq = make_cq(16, channel_);
            require(ibv_destroy_cq(cq) == 0, "a completion queue cannot be destroyed");
            require(ibv_destroy_qp(qp) == 0, "a queue pair cannot be destroyed");
        }
    }
    void register_memory() {
        char* const own = static_cast<char*>(std::aligned_alloc(4096, 8192));
        while (!done()) {
            ibv_mr* const mr = ibv_reg_mr(pd_, own, 8192, IBV_ACCESS_LOCAL_WRITE);
            require(mr != nullptr && ibv_dereg_mr(mr) == 0, "memory cannot be registered and deregistered");
            ibv_port_attr port{};
            require(ibv_query_port(context_, kPort, &port) == 0, "the port cannot be queried");
        }
        std::free(own);
    }
    /// Two threads take one queue pair through its states.
    void move_about(ibv_qp* qp, std::uint64_t seed) {
        std::mt19937_64 random(seed);
        while (!done()) {
            switch (random() % 6) {
                case 0: (void)to_state(qp, IBV_QPS_RESET); break;
                case 1: (void)to_state(qp, IBV_QPS_ERR); break;
                case 2: (void)to_init(qp); break;
                case 3: (void)post_recv(qp, 0, 0, 8); break;
                case 4: (void)post_send(qp, 0, 0, 8); break;
                default: {
                    ibv_qp_attr attr{};
                    ibv_qp_init_attr init{};
                    require(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0, "a queue pair cannot be queried");
                }
            }
        }
    }
    void take_events() {
        while (!done()) {
            require(ibv_req_notify_cq(recv_cq_, 0) == 0, "an event cannot be asked for");
            pollfd fds[] = {{.fd = channel_->fd, .events = POLLIN, .revents = 0},
                            {.fd = context_->async_fd, .events = POLLIN, .revents = 0}};
            (void)::poll(fds, 2, 1);
            ibv_cq* cq = nullptr;
            void* context = nullptr;
            if (ibv_get_cq_event(channel_, &cq, &context) == 0) {
                ibv_ack_cq_events(cq, 1);
            }
            ibv_async_event event{};
            if (ibv_get_async_event(context_, &event) == 0) {
                ibv_ack_async_event(&event);
            }
        }
    }

    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_cq* recv_cq_ = nullptr;
    ibv_srq* srq_ = nullptr;
    const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    std::atomic<std::uint64_t> sent_{0};
    std::atomic<std::uint64_t> received_{0};
    std::atomic<std::uint64_t> failures_{0};
};

TEST_F(VerbsThreads, ShareEverythingAndLoseNothing) {
    ibv_qp* const moved = make_qp(send_cq_, recv_cq_);
    std::vector<std::function<void()>> all;
    for (std::uint64_t i = 0; i < kSenders; ++i) {
        all.emplace_back([this, i] { send_messages(i); });
    }
    all.emplace_back([this] { make_and_end(); });
    all.emplace_back([this] { register_memory(); });
    all.emplace_back([this, moved] { move_about(moved, 1); });
    all.emplace_back([this, moved] { move_about(moved, 2); });
    all.emplace_back([this] { take_events(); });
    std::vector<std::thread> threads;
    for (const auto& one : all) {
        threads.emplace_back(one);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(failures_, 0u);
    EXPECT_EQ(sent_, kSenders * kMessages);
    EXPECT_EQ(received_, kSenders * kMessages);
    EXPECT_EQ(ibv_destroy_qp(moved), 0);
}

}  // namespace
}  // namespace pollcore::test
