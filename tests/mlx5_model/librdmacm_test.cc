// Runs the distribution's librdmacm on the model's rdma_cm.
#include "ucma_ends.hpp"

namespace mlx5_model {
namespace {

struct Destroy {
    void operator()(rdma_cm_id* id) const {
        if (id->qp != nullptr) {
            rdma_destroy_qp(id);
        }
        EXPECT_EQ(rdma_destroy_id(id), 0);
    }
};
using Id = std::unique_ptr<rdma_cm_id, Destroy>;

Id synchronous_id(rdma_port_space space) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, space), 0);
    return Id(id);
}

void create_qp(rdma_cm_id* id, ibv_qp_type type) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = type;
    attributes.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    ASSERT_EQ(rdma_create_qp(id, nullptr, &attributes), 0) << errno;
}

Id librdmacm_listener(rdma_port_space space) {
    Id id = synchronous_id(space);
    sockaddr_in here = of_device(0);
    EXPECT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&here)), 0);
    EXPECT_EQ(rdma_listen(id.get(), 1), 0);
    return id;
}

Id librdmacm_route(rdma_port_space space, std::uint16_t port) {
    Id id = synchronous_id(space);
    sockaddr_in there = of_device(0, port);
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&there), kPatienceMs), 0);
    EXPECT_EQ(rdma_resolve_route(id.get(), kPatienceMs), 0);
    return id;
}

Id next_request(const Id& listening) {
    rdma_cm_id* request = nullptr;
    EXPECT_EQ(rdma_get_request(listening.get(), &request), 0);
    return Id(request);
}

TEST(Librdmacm, ConnectsTwoQueuePairsAndDisconnectsThem) {
    const Id listening = librdmacm_listener(RDMA_PS_TCP);
    std::thread answers([&] {
        const Id request = next_request(listening);
        ASSERT_NE(request, nullptr);
        create_qp(request.get(), IBV_QPT_RC);
        ASSERT_EQ(rdma_accept(request.get(), nullptr), 0) << errno;
        EXPECT_EQ(request->qp->state, IBV_QPS_RTS);
        EXPECT_EQ(rdma_disconnect(request.get()), 0);
    });
    const Id asking = librdmacm_route(RDMA_PS_TCP, ntohs(rdma_get_src_port(listening.get())));
    create_qp(asking.get(), IBV_QPT_RC);
    rdma_conn_param param{};
    param.retry_count = 7;
    EXPECT_EQ(rdma_connect(asking.get(), &param), 0) << errno;
    EXPECT_EQ(asking->qp->state, IBV_QPS_RTS);
    EXPECT_EQ(rdma_disconnect(asking.get()), 0);
    answers.join();
}

TEST(Librdmacm, TellsOfADatagramService) {
    const Id listening = librdmacm_listener(RDMA_PS_UDP);
    std::thread answers([&] {
        const Id request = next_request(listening);
        ASSERT_NE(request, nullptr);
        create_qp(request.get(), IBV_QPT_UD);
        rdma_conn_param param{};
        param.qp_num = request->qp->qp_num;
        ASSERT_EQ(rdma_accept(request.get(), &param), 0) << errno;
    });
    const Id asking = librdmacm_route(RDMA_PS_UDP, ntohs(rdma_get_src_port(listening.get())));
    rdma_conn_param param{};
    EXPECT_EQ(rdma_connect(asking.get(), &param), 0) << errno;
    ASSERT_NE(asking->event, nullptr);
    EXPECT_EQ(asking->event->event, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(asking->event->param.ud.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    answers.join();
}

TEST(Librdmacm, IsToldOfARejection) {
    const Id listening = librdmacm_listener(RDMA_PS_TCP);
    std::thread answers([&] {
        const Id request = next_request(listening);
        ASSERT_NE(request, nullptr);
        EXPECT_EQ(rdma_reject(request.get(), "no", 2), 0);
    });
    const Id asking = librdmacm_route(RDMA_PS_TCP, ntohs(rdma_get_src_port(listening.get())));
    create_qp(asking.get(), IBV_QPT_RC);
    rdma_conn_param param{};
    EXPECT_NE(rdma_connect(asking.get(), &param), 0);
    EXPECT_EQ(errno, ECONNREFUSED);
    answers.join();
}

}  // namespace
}  // namespace mlx5_model
