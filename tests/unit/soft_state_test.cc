// The objects of the software device: states, limits, lifetimes and the rules for posting.
#include <poll.h>

#include <string>

#include <fmt/format.h>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftState : public SoftPair {
protected:
    template <class Call>
    void expect_error(int errno_value, const std::string& text, Call&& call) {
        try {
            call();
            FAIL() << "no error that speaks of " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), errno_value) << error.what();
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
    }
};

TEST_F(SoftState, a_transition_needs_its_attributes_and_takes_no_others) {
    End a(*device), b(*device);
    auto rtr = to_rtr(b.info(), {}, 1, 0, IBV_MTU_1024);
    expect_error(EINVAL, "IBV_QP_RQ_PSN", [&] { device->modify(a.qp.get(), rtr.attr, rtr.mask & ~IBV_QP_RQ_PSN); });
    expect_error(EINVAL, "IBV_QP_TIMEOUT", [&] { device->modify(a.qp.get(), rtr.attr, rtr.mask | IBV_QP_TIMEOUT); });
    auto rts = to_rts(0, {});
    expect_error(EINVAL, "from INIT to RTS", [&] { device->modify(a.qp.get(), rts.attr, rts.mask); });
    EXPECT_EQ(a.state(), IBV_QPS_INIT);
    auto init = to_init(1, 0);
    device->modify(a.qp.get(), init.attr, init.mask);  // from INIT to INIT
    connect(a, b);
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    EXPECT_EQ(a.qp->state, IBV_QPS_RTS);
    a.move_to(IBV_QPS_ERR);
    expect_error(EINVAL, "from ERR to INIT", [&] { device->modify(a.qp.get(), init.attr, init.mask); });
    a.move_to(IBV_QPS_RESET);
    expect_error(EINVAL, "from RESET to ERR", [&] { a.move_to(IBV_QPS_ERR); });
    a.move_to(IBV_QPS_RESET);
    device->modify(a.qp.get(), init.attr, init.mask);
    EXPECT_EQ(a.state(), IBV_QPS_INIT);
}

// As ibv_query_qp() does it: the thread that posts may read ibv_qp::state meanwhile.
TEST_F(SoftState, only_a_query_for_the_state_stores_it_in_the_queue_pair) {
    End a(*device), b(*device);
    connect(a, b);
    EXPECT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8), {0, 8, 0}}), 0);  // the second SGE has no memory
    EXPECT_WC(a.sent(), 1, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(device->query(a.qp.get(), IBV_QP_CAP).qp_state, IBV_QPS_ERR);
    EXPECT_EQ(a.qp->state, IBV_QPS_RTS);
    EXPECT_EQ(device->query(a.qp.get(), IBV_QP_STATE).qp_state, IBV_QPS_ERR);
    EXPECT_EQ(a.qp->state, IBV_QPS_ERR);
}

TEST_F(SoftState, attribute_values_out_of_range_are_refused_and_named) {
    End a(*device), b(*device);
    auto init = to_init(2, 0);
    expect_error(EINVAL, "port_num is 2", [&] { device->modify(a.qp.get(), init.attr, init.mask); });
    auto rtr = to_rtr(b.info(), {}, 1, 0, IBV_MTU_1024);
    auto bad = rtr;
    bad.attr.max_dest_rd_atomic = 200;
    expect_error(EINVAL, "at most 32", [&] { device->modify(a.qp.get(), bad.attr, bad.mask); });
    bad = rtr;
    bad.attr.path_mtu = static_cast<ibv_mtu>(6);
    expect_error(EINVAL, "path_mtu is 6", [&] { device->modify(a.qp.get(), bad.attr, bad.mask); });
    bad = rtr;
    bad.attr.ah_attr.is_global = 0;
    expect_error(EINVAL, "is_global", [&] { device->modify(a.qp.get(), bad.attr, bad.mask); });
    device->modify(a.qp.get(), rtr.attr, rtr.mask);
}

TEST_F(SoftState, posting_follows_the_state) {
    End a(*device), b(*device);
    EXPECT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8)}), EINVAL);
    EXPECT_EQ(a.post_recv(1, {a.sge(0, 8)}), 0);
    a.ready_to_receive(b.info(), {});
    EXPECT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8)}), EINVAL);
    EXPECT_EQ(a.post_recv(2, {a.sge(0, 8)}), 0);
    a.ready_to_send({});
    EXPECT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    a.move_to(IBV_QPS_RESET);
    EXPECT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8)}), EINVAL);
    EXPECT_EQ(a.post_recv(3, {a.sge(0, 8)}), EINVAL);
}

TEST_F(SoftState, a_chain_is_posted_up_to_the_first_that_is_refused) {
    End a(*device), b(*device);
    connect(a, b);
    ibv_sge sges[5];
    std::fill(std::begin(sges), std::end(sges), a.sge(0, 8));
    ibv_send_wr wrs[3]{};
    for (std::uint64_t i = 0; i < 3; ++i) {
        wrs[i].wr_id = i;
        wrs[i].opcode = IBV_WR_RDMA_WRITE;
        wrs[i].send_flags = IBV_SEND_SIGNALED;
        wrs[i].sg_list = sges;
        wrs[i].num_sge = 1;
        wrs[i].wr.rdma = {b.address(0), b.mr->rkey};
        wrs[i].next = i < 2 ? &wrs[i + 1] : nullptr;
    }
    wrs[1].num_sge = 5;  // the QP allows 4
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a.qp.get(), wrs, &bad), EINVAL);
    EXPECT_EQ(bad, &wrs[1]);
    EXPECT_WC(a.sent(), 0, IBV_WC_SUCCESS);
    EXPECT_FALSE(a.sent().has_value());

    EXPECT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 257)}, b.address(0), b.mr->rkey, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(a.post(1, IBV_WR_RDMA_READ, {a.sge(0, 8)}, b.address(0), b.mr->rkey, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(a.post(1, IBV_WR_TSO, {}), EINVAL);
    for (std::uint64_t i = 0; i < 32; ++i)
        ASSERT_EQ(a.post_recv(i, {}), 0);
    EXPECT_EQ(a.post_recv(32, {}), ENOMEM);
}

TEST_F(SoftState, limits_are_enforced_and_said) {
    SoftDeviceOptions options{.name = "small"};
    options.limits.cqes_max = 100;
    options.limits.qp_depth_max = 10;
    options.limits.qps_max = 1;
    options.memory_regions_max = 1;
    const auto small = open_soft_device(options);
    expect_error(EINVAL, "at most 100", [&] { (void)small->create_cq({.cqe = 101}); });
    expect_error(EINVAL, "0 entries", [&] { (void)small->create_cq({}); });
    expect_error(EINVAL, "vector 1", [&] { (void)small->create_cq({.cqe = 1, .comp_vector = 1}); });
    expect_error(EINVAL, "at most 10", [&] { End end(*small, {.depth = 11, .cqe = 100}); });
    End end(*small, {.depth = 10, .cqe = 100});
    QpOptions another;
    another.pd = end.pd.get();
    another.send_cq = another.recv_cq = end.send_cq.get();
    expect_error(EINVAL, "at most 1;", [&] { (void)small->create_qp(another); });
    expect_error(ENOMEM, "memory_regions_max",
                 [&] { (void)small->register_memory(end.pd.get(), end.memory.data(), 8, 0, 0); });
    another.type = IBV_QPT_RAW_PACKET;
    expect_error(EOPNOTSUPP, "RC", [&] { (void)small->create_qp(another); });
}

TEST_F(SoftState, remote_write_needs_local_write) {
    UniquePd pd{device->create_pd(), {device.get()}};
    std::uint64_t word = 0;
    expect_error(EINVAL, "LOCAL_WRITE",
                 [&] { (void)device->register_memory(pd.get(), &word, 8, 0, IBV_ACCESS_REMOTE_WRITE); });
    expect_error(EINVAL, "no memory", [&] { (void)device->register_memory(pd.get(), &word, 0, 0, 0); });
    expect_error(EINVAL, "address space", [&] { (void)device->register_memory(pd.get(), &word, 8, ~0ull - 3, 0); });
}

// The error text reaches an attached process, which knows only the address that it chose for work requests.
TEST_F(SoftState, refused_memory_is_named_by_the_address_for_work_requests_alone) {
    UniquePd pd{device->create_pd(), {device.get()}};
    std::uint64_t word = 0;
    try {
        (void)device->register_memory(pd.get(), &word, 8, 0x7654'3000, IBV_ACCESS_REMOTE_WRITE);
        FAIL() << "it was registered";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("0x76543000"), std::string::npos) << text;
        EXPECT_EQ(text.find(fmt::format("{}", fmt::ptr(&word))), std::string::npos) << text;
    }
}

TEST_F(SoftState, what_is_in_use_is_not_destroyed) {
    auto end = std::make_unique<End>(*device);
    EXPECT_EQ(device->destroy(end->send_cq.get()), EBUSY);
    EXPECT_EQ(device->destroy(end->recv_cq.get()), EBUSY);
    EXPECT_EQ(device->destroy(end->pd.get()), EBUSY);
    end->qp.reset();
    EXPECT_EQ(device->destroy(end->pd.get()), EBUSY);  // refused, because the region still belongs to the PD
    end->mr.reset();
    EXPECT_EQ(device->destroy(end->send_cq.release()), 0);
    EXPECT_EQ(device->destroy(end->pd.release()), 0);
}

TEST_F(SoftState, an_event_that_was_taken_holds_up_destroy_until_it_is_acknowledged) {
    End a(*device), b(*device);
    a.ready_to_receive(b.info(), {});
    b.ready_to_receive(a.info(), {});
    a.ready_to_send({});
    pollfd fd{device->async_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(::poll(&fd, 1, 0), 1);
    const auto event = device->next_async_event();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_COMM_EST);
    EXPECT_EQ(event->element.qp, b.qp.get());
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
    EXPECT_FALSE(device->next_async_event().has_value());
    EXPECT_EQ(device->destroy(b.qp.get()), EBUSY);
    device->acknowledge(*event);
    EXPECT_EQ(device->destroy(b.qp.release()), 0);
}

TEST_F(SoftState, an_event_that_nobody_took_goes_with_its_object) {
    End a(*device);
    {
        End b(*device);
        a.ready_to_receive(b.info(), {});
        b.ready_to_receive(a.info(), {});
        a.ready_to_send({});
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
        EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    }
    EXPECT_FALSE(device->next_async_event().has_value());
}

TEST_F(SoftState, what_the_device_has_not_says_so) {
    End a(*device);
    EXPECT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), EINVAL) << "it has no channel";
    ibv_cq_init_attr_ex attr{};
    EXPECT_EQ(ibv_create_cq_ex(device->context(), &attr), nullptr);
}

TEST_F(SoftState, a_qp_and_its_cqs_are_of_one_thread_domain_of_this_device) {
    const auto domain = device->create_thread_domain();
    const auto other = open_soft_device({.name = "other"});
    const auto foreign = other->create_thread_domain();
    UniquePd pd{device->create_pd(), {device.get()}};
    UniqueCq cq{device->create_cq({.cqe = 4, .domain = domain.get()}), {device.get()}};
    QpOptions options;
    options.pd = pd.get();
    options.send_cq = options.recv_cq = cq.get();
    options.cap = {1, 1, 1, 1, 0};
    expect_error(EINVAL, "thread domain", [&] { (void)device->create_qp(options); });
    options.domain = foreign.get();
    expect_error(EINVAL, "not one of", [&] { (void)device->create_qp(options); });
    options.domain = domain.get();
    const UniqueQp qp{device->create_qp(options), {device.get()}};
    EXPECT_NE(qp->qp_num, 0u);
}

}  // namespace
}  // namespace pollcore::test
