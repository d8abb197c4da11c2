// Tests the kernel's answers: the list of devices, refusals, and the release of objects when a descriptor is closed.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "device_limits.hpp"
#include "hca_fabric.hpp"
#include "verbs_ends.hpp"

namespace mlx5_model {
namespace {

constexpr int kNetlinkRdma = 20;

TEST(Kernel, AllDevicesAreFound) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ASSERT_NE(list, nullptr);
    std::set<std::string> names;
    for (int i = 0; i < count; ++i) {
        names.insert(ibv_get_device_name(list[i]));
    }
    ibv_free_device_list(list);
    EXPECT_EQ(names.size(), devices().size());
    for (const DeviceFacts& device : devices()) {
        EXPECT_TRUE(names.contains(device.name)) << device.name;
    }
}

TEST(Kernel, TheTreeHasTheProcessInItsName) {
    const char* const path = std::getenv("SYSFS_PATH");
    ASSERT_NE(path, nullptr);
    EXPECT_NE(std::string(path).find("mlx5-model-" + std::to_string(::getpid()) + "-"), std::string::npos) << path;
}

TEST(Kernel, NobodyIsAskedByNetlink) {
    EXPECT_LT(::socket(AF_NETLINK, SOCK_RAW, kNetlinkRdma), 0);
    EXPECT_EQ(errno, EPROTONOSUPPORT);
    const int other = ::socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_GE(other, 0);
    ::close(other);
}

TEST(Kernel, ADeviceTellsOfItself) {
    const Context context = open_device("mlx5_1");
    ASSERT_NE(context, nullptr);
    EXPECT_EQ(context->num_comp_vectors, static_cast<int>(kCompletionVectors));
    ibv_device_attr limits{};
    ASSERT_EQ(ibv_query_device(context.get(), &limits), 0);
    EXPECT_EQ(limits.vendor_id, 0x2c9u);
    EXPECT_EQ(limits.node_guid, devices()[1].node_guid);
    EXPECT_EQ(ibv_get_device_guid(context->device), devices()[1].node_guid);
    EXPECT_EQ(limits.atomic_cap, IBV_ATOMIC_HCA);
    EXPECT_EQ(limits.phys_port_cnt, 1);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context.get(), 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT_EQ(port.gid_tbl_len, 2);
    EXPECT_EQ(ibv_query_port(context.get(), 2, &port), EINVAL);
    ibv_gid gid{};
    ASSERT_EQ(ibv_query_gid(context.get(), 1, 1, &gid), 0);
    EXPECT_EQ(std::memcmp(&gid, &devices()[1].gid, sizeof gid), 0);
    std::uint16_t pkey = 0;
    ASSERT_EQ(ibv_query_pkey(context.get(), 1, 0, &pkey), 0);
    EXPECT_EQ(pkey, 0xffff);
}

TEST(Kernel, APdIsBusyWhileAnythingIsOnIt) {
    const Context context = open_device("mlx5_0");
    const Pd pd(ibv_alloc_pd(context.get()));
    std::uint64_t memory[8] = {};
    const auto busy = [&] { return ibv_dealloc_pd(pd.get()) == EBUSY; };
    {
        const Mr mr(ibv_reg_mr(pd.get(), memory, sizeof memory, 0));
        ASSERT_NE(mr, nullptr);
        EXPECT_TRUE(busy());
    }
    {
        const Mw mw(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_1));
        ASSERT_NE(mw, nullptr);
        EXPECT_TRUE(busy());
    }
    {
        ibv_ah_attr attributes{};
        attributes.is_global = 1;
        attributes.port_num = 1;
        attributes.grh.dgid = devices()[1].gid;
        const Ah ah(ibv_create_ah(pd.get(), &attributes));
        ASSERT_NE(ah, nullptr);
        EXPECT_TRUE(busy());
    }
    {
        ibv_srq_init_attr attributes{};
        attributes.attr = {4, 1, 0};
        const Srq srq(ibv_create_srq(pd.get(), &attributes));
        ASSERT_NE(srq, nullptr);
        EXPECT_TRUE(busy());
    }
}

TEST(Kernel, WhatAQueuePairUsesIsBusy) {
    Options options;
    options.srq = true;
    const End end(options);
    EXPECT_EQ(ibv_destroy_cq(end.send_cq.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(end.recv_cq.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_srq(end.srq.get()), EBUSY);
    EXPECT_EQ(ibv_dealloc_pd(end.pd.get()), EBUSY);
}

TEST(Kernel, MemoryIsRegisteredWhereItIs) {
    const Context context = open_device("mlx5_0");
    const Pd pd(ibv_alloc_pd(context.get()));
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto* const pages = static_cast<std::uint8_t*>(
        ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(pages, MAP_FAILED);
    ASSERT_EQ(::munmap(pages + page, page), 0);
    const auto error = [&](void* at, std::size_t length, unsigned access = 0) {
        errno = 0;
        const Mr mr(ibv_reg_mr(pd.get(), at, length, access));
        return mr == nullptr ? errno : 0;
    };
    EXPECT_EQ(error(pages, page), 0);
    EXPECT_EQ(error(pages + 1, page - 1), 0);
    EXPECT_EQ(error(pages, page + 1), EFAULT);
    EXPECT_EQ(error(pages + page, 1), EFAULT);
    EXPECT_EQ(error(pages, 3 * page), EFAULT) << "a hole";
    EXPECT_EQ(error(pages, 0), EINVAL);
    EXPECT_EQ(error(pages, page, IBV_ACCESS_REMOTE_WRITE), EINVAL) << "who writes from afar writes here";
    EXPECT_EQ(error(pages, page, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
    EXPECT_EQ(error(pages, page, IBV_ACCESS_REMOTE_READ), 0);
    EXPECT_EQ(error(pages, page, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    ::munmap(pages, page);
    ::munmap(pages + 2 * page, page);
}

TEST(Kernel, AQueuePairGoesItsWayByTheRules) {
    const End end;
    const End peer;
    EXPECT_EQ(end.modify({}, IBV_QPS_ERR), EINVAL) << "there is no way from RESET";
    EXPECT_EQ(end.ready_to_send(), EINVAL);
    ibv_qp_attr attributes{};
    attributes.port_num = 2;
    EXPECT_EQ(end.modify(attributes, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), EINVAL)
        << "no such port";
    attributes.port_num = 1;
    attributes.pkey_index = 1;
    EXPECT_EQ(end.modify(attributes, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), EINVAL)
        << "no such key";
    EXPECT_EQ(end.modify(attributes, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), EINVAL);
    EXPECT_EQ(end.state(), IBV_QPS_RESET);
    ASSERT_EQ(end.init(), 0);
    ibv_gid nobody = peer.gid();
    nobody.raw[15] = 99;
    EXPECT_EQ(end.ready_to_receive(nobody, peer.number()), EHOSTUNREACH);
    EXPECT_EQ(end.state(), IBV_QPS_INIT);
    ASSERT_EQ(end.ready_to_receive(peer.gid(), peer.number()), 0);
    EXPECT_EQ(end.ready_to_receive(peer.gid(), peer.number()), EINVAL);
    Path path;
    path.retries = 8;
    EXPECT_EQ(end.ready_to_send(path), EINVAL);
    path = {};
    path.timeout = 32;
    EXPECT_EQ(end.ready_to_send(path), EINVAL);
    path = {};
    path.retries = 3;
    path.rnr_retries = 5;
    path.timeout = 14;
    ASSERT_EQ(end.ready_to_send(path), 0);
    ibv_qp_init_attr made{};
    ASSERT_EQ(ibv_query_qp(end.qp.get(), &attributes, IBV_QP_STATE, &made), 0);
    EXPECT_EQ(attributes.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(attributes.retry_cnt, 3);
    EXPECT_EQ(attributes.rnr_retry, 5);
    EXPECT_EQ(attributes.timeout, 14);
    EXPECT_EQ(attributes.dest_qp_num, peer.number());
    EXPECT_EQ(attributes.sq_psn, path.psn);
    EXPECT_EQ(attributes.path_mtu, IBV_MTU_1024);
    EXPECT_EQ(attributes.max_dest_rd_atomic, 4);
    EXPECT_EQ(std::memcmp(&attributes.ah_attr.grh.dgid, peer.gid().raw, 16), 0);
    attributes.cur_qp_state = IBV_QPS_SQD;
    EXPECT_EQ(end.modify(attributes, IBV_QPS_RTS, IBV_QP_CUR_STATE), EINVAL) << "that is not its state";
}

TEST(Kernel, QueuesHaveLimits) {
    const End end;
    const auto cq_error = [&](int entries, int vector) {
        errno = 0;
        const Cq cq(ibv_create_cq(end.context.get(), entries, nullptr, nullptr, vector));
        return cq == nullptr ? errno : 0;
    };
    EXPECT_EQ(cq_error(10, 1), 0);
    EXPECT_EQ(cq_error(10, static_cast<int>(kCompletionVectors)), EINVAL);
    EXPECT_EQ(cq_error(0, 0), EINVAL);
    EXPECT_EQ(cq_error(static_cast<int>(kCompletionsMax) + 1, 0), EINVAL);
    const auto qp_error = [&](ibv_qp_cap cap) {
        ibv_qp_init_attr attributes{};
        attributes.send_cq = end.send_cq.get();
        attributes.recv_cq = end.recv_cq.get();
        attributes.cap = cap;
        attributes.qp_type = IBV_QPT_RC;
        errno = 0;
        const Qp qp(ibv_create_qp(end.pd.get(), &attributes));
        return qp == nullptr ? errno : 0;
    };
    EXPECT_EQ(qp_error({1, 1, 1, 1, 0}), 0);
    EXPECT_EQ(qp_error({0, 0, 0, 0, 0}), 0);
    EXPECT_NE(qp_error({kSendBlocksMax + 1, 1, 1, 1, 0}), 0);
    EXPECT_NE(qp_error({1, kReceivesMax + 1, 1, 1, 0}), 0);
    EXPECT_NE(qp_error({1, 1, 100, 1, 0}), 0);
    EXPECT_NE(qp_error({1, 1, 1, 100, 0}), 0);
    EXPECT_NE(qp_error({1, 1, 1, 1, 5000}), 0);
    ibv_srq_init_attr attributes{};
    attributes.attr = {kSharedReceivesMax + 1, 1, 0};
    EXPECT_EQ(ibv_create_srq(end.pd.get(), &attributes), nullptr);
}

TEST(Kernel, AQueueKeepsItsSize) {
    Pair pair;
    EXPECT_NE(ibv_resize_cq(pair.here.send_cq.get(), 100), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
}

TEST(Kernel, AnAddressHandleNeedsSomebodyThere) {
    const Context context = open_device("mlx5_0");
    const Pd pd(ibv_alloc_pd(context.get()));
    const auto error = [&](auto&& change) {
        ibv_ah_attr attributes{};
        attributes.is_global = 1;
        attributes.port_num = 1;
        attributes.grh.dgid = devices()[1].gid;
        attributes.grh.sgid_index = 1;
        change(attributes);
        errno = -1;  // libmlx5 sets errno only if it has asked the kernel
        const Ah ah(ibv_create_ah(pd.get(), &attributes));
        return ah == nullptr ? errno : 0;
    };
    EXPECT_EQ(error([](ibv_ah_attr&) {}), 0);
    EXPECT_EQ(error([](ibv_ah_attr& to) { to.grh.dgid.raw[15] = 99; }), EHOSTUNREACH);
    EXPECT_NE(error([](ibv_ah_attr& to) { to.port_num = 2; }), 0);
    EXPECT_NE(error([](ibv_ah_attr& to) { to.is_global = 0; }), 0);
    EXPECT_NE(error([](ibv_ah_attr& to) { to.grh.sgid_index = 2; }), 0);
}

TEST(Kernel, AForkedChildsDescriptorsAreCopies) {
    Pair pair;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::close(pair.here.context->cmd_fd);
        ::close(pair.here.context->async_fd);
        ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.here.state(), IBV_QPS_RTS);
}

// Answers as the kernel does for a removed device. With RDMAV_ALLOW_DISASSOC_DESTROY libibverbs then frees its own
// memory.
class Gone : public File {
public:
    long ioctl(unsigned long, void*) override { return -EIO; }
};

// Acts like a crash of the process: nothing is destroyed, and the device's descriptor is closed.
TEST(Kernel, AClosedDeviceKeepsNothing) {
    for (const bool srq : {false, true}) {
        {
            Options options;
            options.channel = true;
            options.srq = srq;
            Pair pair(options);
            ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 8)}), 0);
            ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
            mlx5_model_step(1);
            const std::uint32_t qpn = pair.here.number();
            const std::uint32_t cqn = pair.here.number_of(pair.here.send_cq);
            mlx5dv_pd own{};
            mlx5dv_obj object{};
            object.pd = {pair.here.pd.get(), &own};
            ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_PD), 0);
            Fabric& fabric = Fabric::get();
            {
                const std::lock_guard guard(fabric.lock);
                EXPECT_NE(fabric.qp(qpn), nullptr);
                EXPECT_NE(fabric.cq(cqn), nullptr);
                EXPECT_TRUE(fabric.hcas().front()->keys.uses(own.pdn));
            }
            const int descriptor = pair.here.context->cmd_fd;
            const int other = ::open("/dev/null", O_RDONLY);
            ASSERT_GE(other, 0);
            ::close(descriptor);
            ASSERT_EQ(::dup2(other, descriptor), descriptor);
            ::close(other);
            attach(descriptor, std::make_shared<Gone>());
            const std::lock_guard guard(fabric.lock);
            EXPECT_EQ(fabric.qp(qpn), nullptr);
            EXPECT_EQ(fabric.cq(cqn), nullptr);
            EXPECT_FALSE(fabric.hcas().front()->keys.uses(own.pdn));
        }
        Pair again;
        ASSERT_EQ(again.here.post(IBV_WR_RDMA_WRITE, 1, {again.here.part(0, 8)}, to_memory(again.there, 0)), 0);
        EXPECT_EQ(again.here.sent().status, IBV_WC_SUCCESS);
    }
}

}  // namespace
}  // namespace mlx5_model
