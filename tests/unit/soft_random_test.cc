// Random work with failures in between. Every accepted work request ends once, and in order.
#include <array>
#include <deque>
#include <random>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

/// The work that one end has posted and that has not ended yet.
struct Ledger {
    struct Send {
        std::uint64_t id;
        bool signaled;
    };
    std::deque<Send> sends;
    std::deque<std::uint64_t> receives;
    std::uint64_t next_id = 1;
    bool in_error = false;
    bool send_failed = false;
};

class World {
public:
    explicit World(unsigned seed) : random_(seed) {
        for (auto& domain : domains_)
            domain = device_->create_thread_domain();
        for (std::size_t i = 0; i < kEnds; ++i) {
            EndOptions options;
            options.depth = 8;
            options.cqe = 8;  // exactly as many CQEs as may be outstanding
            options.memory = 16384;
            options.domain = domains_[i % 2].get();
            ends_.push_back(std::make_unique<End>(*device_, options));
        }
        for (std::size_t i = 0; i < kEnds; i += 2)
            reconnect(i, false);
    }

    void step() {
        const std::size_t who = pick(kEnds);
        switch (pick(20)) {
            case 0:
                if (pick(10) == 0)
                    end_by_force(who);
                break;
            case 1:
                now_ += 1 + pick(2'000'000);
                *clock_.now = now_;
                break;
            case 2: device_->advance(now_); break;
            case 3:
            case 4:
            case 5:
            case 6:
            case 7:
            case 8: poll(who); break;
            case 9:
            case 10:
            case 11:
            case 12: receive(who); break;
            default: send(who); break;
        }
        if (ledgers_[who].in_error) {
            drain(who);
            drain(who ^ 1);
            reconnect(who & ~std::size_t{1}, true);
        }
    }

    void finish() {
        for (std::size_t i = 0; i < kEnds; ++i) {
            ends_[i]->move_to(IBV_QPS_ERR);
            drain(i);
        }
        EXPECT_GT(successes_, 0u);
    }
    [[nodiscard]] std::uint64_t failures() const { return failures_; }
    [[nodiscard]] std::uint64_t successes() const { return successes_; }

private:
    static constexpr std::size_t kEnds = 8;

    std::size_t pick(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

    void reconnect(std::size_t first, bool again) {
        for (std::size_t i : {first, first + 1}) {
            if (again) {
                ends_[i]->move_to(IBV_QPS_RESET);
                auto init = to_init(1, kAllAccess);
                device_->modify(ends_[i]->qp.get(), init.attr, init.mask);
            }
            ends_[i]->psn = static_cast<std::uint32_t>(pick(1u << 24));
            ledgers_[i].sends.clear();
            ledgers_[i].receives.clear();
            ledgers_[i].in_error = ledgers_[i].send_failed = false;
        }
        PathAttributes path;
        path.timeout = 8;
        path.retry_count = 3;
        path.rnr_retry = static_cast<std::uint8_t>(pick(8));
        path.min_rnr_timer = 1;
        path.max_rd_atomic = path.max_dest_rd_atomic = static_cast<std::uint8_t>(1 + pick(4));
        connect(*ends_[first], *ends_[first + 1], path, static_cast<ibv_mtu>(1 + pick(5)));
    }

    void send(std::size_t who) {
        End& end = *ends_[who];
        End& peer = *ends_[who ^ 1];
        Ledger& ledger = ledgers_[who];
        constexpr std::array kOpcodes = {
            IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,        IBV_WR_RDMA_WRITE,        IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
        const ibv_wr_opcode opcode = kOpcodes[pick(kOpcodes.size())];
        const bool signaled = pick(3) != 0;
        const bool broken = pick(200) == 0;
        const bool fenced = pick(10) == 0;
        const std::uint32_t key = broken && pick(2) == 0 ? 0x1234 : peer.mr->rkey;
        const std::uint64_t id = ledger.next_id++;
        const auto length = static_cast<std::uint32_t>(pick(3) == 0 ? pick(6000) : pick(64));
        ibv_sge sge = end.sge(0, opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : length);
        if (broken && key == peer.mr->rkey)
            sge.lkey ^= 0xff00;
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.opcode = opcode;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.send_flags = (signaled ? unsigned{IBV_SEND_SIGNALED} : 0u) | (fenced ? unsigned{IBV_SEND_FENCE} : 0u);
        if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.atomic = {peer.address(8192), 1, 2, key};
        } else {
            wr.wr.rdma = {peer.address(8200), key};
        }
        ibv_send_wr* bad = nullptr;
        const int result = ibv_post_send(end.qp.get(), &wr, &bad);
        if (result == 0) {
            ledger.sends.push_back({id, signaled});
        } else {
            ASSERT_EQ(result, ENOMEM);
            // If unsignaled work fills the queue, only an error empties the queue. Then the test begins again.
            if (ledger.sends.size() >= 8)
                end_by_force(who);
        }
    }

    void receive(std::size_t who) {
        Ledger& ledger = ledgers_[who];
        const std::uint64_t id = ledger.next_id++;
        const auto length = static_cast<std::uint32_t>(pick(30) == 0 ? 10 : 6000);
        const int result = ends_[who]->post_recv(id, {ends_[who]->sge(0, length)});
        if (result == 0) {
            ledger.receives.push_back(id);
        } else {
            ASSERT_EQ(result, ENOMEM);
            ASSERT_GE(ledger.receives.size(), 8u);
        }
    }

    void end_by_force(std::size_t who) {
        ends_[who]->move_to(IBV_QPS_ERR);
        ledgers_[who].in_error = true;
    }

    void poll(std::size_t who) {
        Ledger& ledger = ledgers_[who];
        std::array<ibv_wc, 3> wcs{};
        int count = ibv_poll_cq(ends_[who]->send_cq.get(), static_cast<int>(1 + pick(3)), wcs.data());
        ASSERT_GE(count, 0);
        for (int i = 0; i < count; ++i) {
            const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
            while (!ledger.sends.empty() && ledger.sends.front().id != wc.wr_id) {
                // A send that has no completion must be unsignaled and successful.
                ASSERT_FALSE(ledger.sends.front().signaled) << "send " << ledger.sends.front().id << " was lost";
                ASSERT_FALSE(ledger.send_failed) << "behind a failure every send completes";
                ledger.sends.pop_front();
            }
            ASSERT_FALSE(ledger.sends.empty()) << "send " << wc.wr_id << " was never posted, or completed before";
            ASSERT_TRUE(ledger.sends.front().signaled || wc.status != IBV_WC_SUCCESS);
            ledger.sends.pop_front();
            if (wc.status != IBV_WC_SUCCESS)
                ledger.send_failed = true;
            count_status(ledger, wc);
        }
        count = ibv_poll_cq(ends_[who]->recv_cq.get(), static_cast<int>(1 + pick(3)), wcs.data());
        ASSERT_GE(count, 0);
        for (int i = 0; i < count; ++i) {
            const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
            ASSERT_FALSE(ledger.receives.empty());
            ASSERT_EQ(ledger.receives.front(), wc.wr_id);
            ledger.receives.pop_front();
            count_status(ledger, wc);
        }
    }

    void count_status(Ledger& ledger, const ibv_wc& wc) {
        if (wc.status == IBV_WC_SUCCESS) {
            ++successes_;
        } else {
            ++failures_;
            ledger.in_error = true;
        }
    }

    /// Moves a QP to ERR, and polls the remaining completions. Afterwards no signaled send and no receive may remain.
    void drain(std::size_t who) {
        ends_[who]->move_to(IBV_QPS_ERR);
        for (int i = 0; i < 20; ++i)
            ASSERT_NO_FATAL_FAILURE(poll(who));
        for (const auto& send : ledgers_[who].sends)
            ASSERT_FALSE(send.signaled) << "send " << send.id << " was lost";
        ASSERT_TRUE(ledgers_[who].receives.empty());
        while (const auto event = device_->next_async_event()) {
            ASSERT_NE(event->event_type, IBV_EVENT_CQ_ERR);
            device_->acknowledge(*event);
        }
    }

    std::mt19937 random_;
    ManualClock clock_;
    std::uint64_t now_ = 1;
    std::unique_ptr<SoftDevice> device_ = open_soft_device({.clock_ns = clock_.reader()});
    std::array<std::unique_ptr<ThreadDomain>, 2> domains_;
    std::vector<std::unique_ptr<End>> ends_;
    std::array<Ledger, kEnds> ledgers_;
    std::uint64_t successes_ = 0;
    std::uint64_t failures_ = 0;
};

TEST(SoftRandom, every_accepted_work_request_ends_once_and_in_order) {
    std::uint64_t successes = 0, failures = 0;
    for (unsigned seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(seed);
        World world(seed);
        for (int i = 0; i < 5000; ++i) {
            world.step();
            if (::testing::Test::HasFailure())
                return;
        }
        world.finish();
        successes += world.successes();
        failures += world.failures();
    }
    RecordProperty("successes", std::to_string(successes));
    RecordProperty("failures", std::to_string(failures));
    EXPECT_GT(successes, 40'000u);
    EXPECT_GT(failures, 1000u);
}

}  // namespace
}  // namespace pollcore::test
