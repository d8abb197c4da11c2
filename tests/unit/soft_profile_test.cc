// The habits of real providers that a software device can adopt.
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftProfiles : public ::testing::Test {
protected:
    void open(const SoftProfile& profile) {
        device = open_soft_device({.clock_ns = clock.reader(), .profile = profile});
    }
    std::vector<ibv_event_type> events() {
        std::vector<ibv_event_type> types;
        while (const auto event = device->next_async_event()) {
            types.push_back(event->event_type);
            device->acknowledge(*event);
        }
        return types;
    }
    ManualClock clock;
    std::unique_ptr<SoftDevice> device;
};

using Events = std::vector<ibv_event_type>;

TEST_F(SoftProfiles, rxe_never_flushes_a_receive_that_is_posted_in_error) {
    for (const bool rxe : {false, true}) {
        SCOPED_TRACE(rxe ? "rxe" : "standard");
        open(rxe ? kRxeLike : SoftProfile{});
        End a(*device), b(*device);
        connect(a, b);
        ASSERT_EQ(a.post_recv(1, {a.sge(0, 8)}), 0);
        a.move_to(IBV_QPS_ERR);
        ASSERT_EQ(a.post_recv(2, {a.sge(0, 8)}), 0);
        EXPECT_WC(a.received(), 1, IBV_WC_WR_FLUSH_ERR);
        // With the habits of rxe, the flush of a later send does not flush the second receive either.
        ASSERT_EQ(a.post(3, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
        EXPECT_WC(a.sent(), 3, IBV_WC_WR_FLUSH_ERR);
        const auto late = a.received();
        EXPECT_EQ(late.has_value(), !rxe);
    }
}

TEST_F(SoftProfiles, rxe_says_each_completion_that_an_overrun_loses_and_goes_on) {
    open(kRxeLike);
    End a(*device, {.cqe = 4}), b(*device);
    connect(a, b);
    for (std::uint64_t i = 0; i < 7; ++i)
        ASSERT_EQ(a.post(i, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    device->advance(1000);
    EXPECT_EQ(events(), (Events{IBV_EVENT_CQ_ERR, IBV_EVENT_CQ_ERR, IBV_EVENT_CQ_ERR}));
    for (std::uint64_t i = 0; i < 4; ++i)
        EXPECT_WC(a.sent(), i, IBV_WC_SUCCESS);
    EXPECT_FALSE(a.sent().has_value());
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    ASSERT_EQ(a.post(9, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    EXPECT_WC(a.sent(), 9, IBV_WC_SUCCESS);
}

// Two QPs that share one CQ. A completion of one QP lies between completions of the other QP.
class SharedCq {
public:
    /// If `clock` is given, the CQ has time stamps, and each completion comes kBetween later than the one before.
    explicit SharedCq(SoftDevice& on, const ManualClock* clock = nullptr)
        : device(on), x{on, {.device_time = clock != nullptr}} {
        const auto pass = [&] {
            if (clock != nullptr)
                *clock->now += kBetween;
        };
        for (End* end : {&x, &y}) {
            QpOptions options{
                .pd = end->pd.get(), .send_cq = x.send_cq.get(), .recv_cq = x.send_cq.get(), .cap = {8, 8, 1, 1, 0}};
            end->qp = {device.create_qp(options), {&device}};
            auto init = to_init(1, kAllAccess);
            device.modify(end->qp.get(), init.attr, init.mask);
        }
        x.ready_to_receive(peer.info(), {});
        x.ready_to_send({});
        y.ready_to_receive(other_peer.info(), {});
        y.ready_to_send({});
        peer.ready_to_receive(x.info(), {});
        other_peer.ready_to_receive(y.info(), {});
        for (std::uint64_t i = 0; i < 3; ++i) {
            pass();
            EXPECT_EQ(x.post(10 + i, IBV_WR_RDMA_WRITE, {x.sge(0, 8)}, peer.address(0), peer.mr->rkey), 0);
            device.advance(clock != nullptr ? *clock->now : 1000);
            pass();
            EXPECT_EQ(y.post(20 + i, IBV_WR_RDMA_WRITE, {y.sge(0, 8)}, other_peer.address(0), other_peer.mr->rkey), 0);
            device.advance(clock != nullptr ? *clock->now : 1000);
        }
    }
    std::vector<std::uint64_t> taken() {
        std::vector<std::uint64_t> ids;
        while (const auto wc = End::wait(x.send_cq.get()))
            ids.push_back(wc->wr_id);
        return ids;
    }

    static constexpr std::uint64_t kBetween = 10'000;

    SoftDevice& device;
    End x, y{device}, peer{device}, other_peer{device};
};

using Ids = std::vector<std::uint64_t>;

TEST_F(SoftProfiles, mlx5_purges_a_qps_completions_at_reset_and_destroy_and_leaves_the_others) {
    for (const bool destroyed : {false, true}) {
        SCOPED_TRACE(destroyed ? "destroy" : "reset");
        const auto end_x = [&](SharedCq& shared) {
            if (destroyed)
                shared.x.qp.reset();
            else
                shared.x.move_to(IBV_QPS_RESET);
        };
        open({});
        {
            SharedCq shared(*device);
            end_x(shared);
            EXPECT_EQ(shared.taken(), (Ids{10, 20, 11, 21, 12, 22}));
            shared.y.qp.reset();
        }
        open(kMlx5Like);
        SharedCq shared(*device);
        end_x(shared);
        EXPECT_EQ(shared.taken(), (Ids{20, 21, 22}));
        shared.y.qp.reset();
        shared.x.qp.reset();
    }
}

TEST_F(SoftProfiles, mlx5_leaves_the_others_their_times_when_it_purges) {
    open(kMlx5Like);
    const std::uint64_t before = *clock.now;
    SharedCq shared(*device, &clock);
    shared.x.move_to(IBV_QPS_RESET);
    ibv_cq_ex& cq = *extended(shared.x.send_cq.get());
    ibv_poll_cq_attr attr{};
    ASSERT_EQ(ibv_start_poll(&cq, &attr), 0);
    for (std::uint64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(cq.wr_id, 20 + i);
        EXPECT_EQ(ibv_wc_read_completion_ts(&cq), before + (2 * i + 2) * SharedCq::kBetween);
        EXPECT_EQ(ibv_next_poll(&cq), i < 2 ? 0 : ENOENT);
    }
    ibv_end_poll(&cq);
    shared.y.qp.reset();
    shared.x.qp.reset();
}

TEST_F(SoftProfiles, mlx5_writes_a_small_payload_when_its_completion_is_polled) {
    open(kMlx5Like);
    End a(*device), b(*device);
    connect(a, b);
    a.memory[0] = 0x1122334455667788;
    for (const std::uint32_t length : {1u, 32u, 33u}) {
        SCOPED_TRACE(length);
        b.memory[0] = 0;
        ASSERT_EQ(b.post_recv(1, {b.sge(0, 64)}), 0);
        ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, length)}), 0);
        device->advance(1000);
        EXPECT_EQ(b.memory[0] != 0, length > SoftProfile::kPayloadInCqe);
        EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
        EXPECT_EQ(std::memcmp(a.at(0), b.at(0), std::min<std::size_t>(length, 8)), 0);
        EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    }
}

// H8: the CPU writes to the address in the SGE, whoever owns that address. It does not write to the memory that is
// registered under that address.
TEST_F(SoftProfiles, mlx5_writes_a_small_payload_at_the_sges_own_address_with_the_cpu) {
    std::vector<std::uint64_t> elsewhere(8, 0);
    for (const bool mlx5 : {false, true}) {
        SCOPED_TRACE(mlx5 ? "mlx5" : "standard");
        open(mlx5 ? kMlx5Like : SoftProfile{});
        End a(*device), b(*device);
        connect(a, b);
        const auto iova = reinterpret_cast<std::uint64_t>(elsewhere.data());
        UniqueMr foreign{device->register_memory(b.pd.get(), b.at(0), 64, iova, kAllAccess), {device.get()}};
        a.memory[0] = 77;
        ASSERT_EQ(b.post_recv(1, {{iova, 8, foreign->lkey}}), 0);
        ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 8)}), 0);
        EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
        EXPECT_EQ(b.memory[0], mlx5 ? 0u : 77u);
        EXPECT_EQ(elsewhere[0], mlx5 ? 77u : 0u);
    }
}

// Bug found by the simulation: the poll of another CQ wrote the payload, together with the next completion, into a
// buffer that the program had already got back.
TEST_F(SoftProfiles, mlx5_loses_the_payload_with_the_completion_of_a_dead_cq) {
    open(kMlx5Like);
    End a(*device), b(*device);
    connect(a, b);
    for (std::uint64_t id = 1; id <= 2; ++id) {
        a.memory[0] = id;
        ASSERT_EQ(b.post_recv(id, {b.sge(8 * id, 8)}), 0);
        ASSERT_EQ(a.post(id, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    }
    device->inject({.kind = SoftFault::Kind::overrun, .qp_num = b.qp->qp_num});
    device->advance(1000);
    EXPECT_LT(ibv_poll_cq(b.recv_cq.get(), 1, std::array<ibv_wc, 1>{}.data()), 0);
    while (a.sent()) {
    }
    EXPECT_EQ(b.memory[1], 0u);
    EXPECT_EQ(b.memory[2], 0u);
}

TEST_F(SoftProfiles, mlx5_gives_a_qps_number_to_the_next_one) {
    for (const bool mlx5 : {false, true}) {
        open(mlx5 ? kMlx5Like : SoftProfile{});
        End a(*device);
        const std::uint32_t number = a.qp->qp_num;
        a.qp.reset();
        End b(*device);
        EXPECT_EQ(b.qp->qp_num == number, mlx5);
    }
}

TEST_F(SoftProfiles, a_poll_that_fails_takes_nothing_or_as_on_mlx5_what_came_before) {
    for (const bool mlx5 : {false, true}) {
        SCOPED_TRACE(mlx5 ? "mlx5" : "standard");
        open(mlx5 ? kMlx5Like : SoftProfile{});
        End a(*device), b(*device);
        connect(a, b);
        for (std::uint64_t i = 0; i < 6; ++i)
            ASSERT_EQ(a.post(i, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
        device->advance(1000);
        device->inject({.kind = SoftFault::Kind::poll_cq});
        ibv_wc wcs[4];
        EXPECT_LT(ibv_poll_cq(a.send_cq.get(), 4, wcs), 0);
        const auto next = a.sent();
        ASSERT_TRUE(next.has_value());
        EXPECT_EQ(next->wr_id, mlx5 ? 2u : 0u);
    }
}

TEST_F(SoftProfiles, whatever_the_profile_a_failed_completion_holds_garbage_where_the_verbs_promise_nothing) {
    for (const SoftProfile& profile : {SoftProfile{}, kRxeLike, kMlx5Like}) {
        open(profile);
        End a(*device), b(*device);
        connect(a, b);
        for (std::uint64_t i = 0; i < 8; ++i)
            ASSERT_EQ(a.post(i, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), 0x777), 0);
        std::uint32_t byte_lens = 0;
        std::uint32_t queues = 0;
        for (std::uint64_t i = 0; i < 8; ++i) {
            const auto wc = a.sent();
            EXPECT_WC(wc, i, i == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
            EXPECT_EQ(wc->qp_num, a.qp->qp_num);
            EXPECT_EQ(wc->vendor_err & 0xffff, static_cast<std::uint32_t>(wc->status));
            EXPECT_NE(wc->vendor_err, 0u);
            byte_lens += wc->byte_len != 0;
            std::uint32_t opcode = 0;
            std::memcpy(&opcode, &wc->opcode, sizeof(opcode));
            queues |= 1u << ((opcode & IBV_WC_RECV) != 0);
        }
        EXPECT_GE(byte_lens, 7u);
        EXPECT_EQ(queues, 3u) << "an opcode that tells nothing about the queue";
    }
}

}  // namespace
}  // namespace pollcore::test
