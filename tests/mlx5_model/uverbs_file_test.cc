// Raw commands that libibverbs would never send.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include "hca_fabric.hpp"

namespace mlx5_model {
namespace {

class Command {
public:
    Command(std::uint16_t object, std::uint16_t method) : bytes_(sizeof(ib_uverbs_ioctl_hdr)) {
        header().object_id = object;
        header().method_id = method;
    }
    static Command invoke_write(std::uint32_t number) {
        Command command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
        return command.attribute(UVERBS_ATTR_WRITE_CMD, &number, sizeof number);
    }
    Command& attribute(std::uint16_t id, const void* data, std::uint16_t size) {
        ib_uverbs_attr attribute{};
        attribute.attr_id = id;
        attribute.len = size;
        if (size <= sizeof attribute.data && id != UVERBS_ATTR_CORE_OUT) {
            std::memcpy(&attribute.data, data, size);
        } else {
            attribute.data = reinterpret_cast<std::uintptr_t>(data);
        }
        const auto* from = reinterpret_cast<const std::uint8_t*>(&attribute);
        bytes_.insert(bytes_.end(), from, from + sizeof attribute);
        header().num_attrs = static_cast<std::uint16_t>(header().num_attrs + 1);
        return *this;
    }
    /// Returns 0 or the errno value.
    int send(int descriptor) {
        header().length = static_cast<std::uint16_t>(bytes_.size());
        return ::ioctl(descriptor, RDMA_VERBS_IOCTL, bytes_.data()) == 0 ? 0 : errno;
    }

private:
    ib_uverbs_ioctl_hdr& header() { return *reinterpret_cast<ib_uverbs_ioctl_hdr*>(bytes_.data()); }
    std::vector<std::uint8_t> bytes_;
};

class UverbsFileTest : public testing::Test {
protected:
    ~UverbsFileTest() override { ::close(descriptor); }
    int descriptor = ::open(devices()[0].file.c_str(), O_RDWR | O_CLOEXEC);
};

TEST_F(UverbsFileTest, NewerMethodsAreNotSupported) {
    EXPECT_EQ(Command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT).send(descriptor), EPROTONOSUPPORT);
    EXPECT_EQ(Command(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE).send(descriptor), EPROTONOSUPPORT);
    EXPECT_EQ(Command(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY).send(descriptor), EPROTONOSUPPORT);
    EXPECT_EQ(Command(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER).send(descriptor), EPROTONOSUPPORT);
}

TEST_F(UverbsFileTest, ThatThereIsInvokeWriteIsTold) {
    EXPECT_EQ(Command::invoke_write(IB_USER_VERBS_CMD_QUERY_DEVICE).send(descriptor), ENOSPC);
    EXPECT_EQ(Command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE).send(descriptor), EINVAL)
        << "without a command";
}

TEST_F(UverbsFileTest, TheContextComesFirst) {
    std::uint8_t answer[64];
    const ib_uverbs_alloc_pd request{};
    EXPECT_EQ(Command::invoke_write(IB_USER_VERBS_CMD_ALLOC_PD)
                  .attribute(UVERBS_ATTR_CORE_IN, &request, sizeof request)
                  .attribute(UVERBS_ATTR_CORE_OUT, answer, sizeof answer)
                  .send(descriptor),
              EINVAL);
}

TEST_F(UverbsFileTest, ADescriptorHasOneContextAndItsCommandsAreChecked) {
    std::uint8_t answer[256] = {};
    std::uint8_t request[64] = {};
    const auto get_context = [&](std::uint16_t size) {
        return Command::invoke_write(IB_USER_VERBS_CMD_GET_CONTEXT)
            .attribute(UVERBS_ATTR_CORE_OUT, answer, 8)
            .attribute(UVERBS_ATTR_UHW_IN, request, size)
            .send(descriptor);
    };
    EXPECT_EQ(get_context(4), EINVAL) << "libmlx5's part is cut off";
    ASSERT_EQ(get_context(32), 0);
    int async = -1;
    std::memcpy(&async, answer, sizeof async);
    EXPECT_EQ(get_context(32), EINVAL) << "there is one";
    const auto command = [&](std::uint32_t number, std::uint16_t size) {
        return Command::invoke_write(number)
            .attribute(UVERBS_ATTR_CORE_IN, request, size)
            .attribute(UVERBS_ATTR_CORE_OUT, answer, sizeof answer)
            .send(descriptor);
    };
    for (const std::uint32_t number :
         {IB_USER_VERBS_CMD_DEALLOC_PD, IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_DEREG_MR,
          IB_USER_VERBS_CMD_ALLOC_MW, IB_USER_VERBS_CMD_DEALLOC_MW, IB_USER_VERBS_CMD_CREATE_AH,
          IB_USER_VERBS_CMD_DESTROY_AH, IB_USER_VERBS_CMD_CREATE_CQ, IB_USER_VERBS_CMD_DESTROY_CQ,
          IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_CMD_MODIFY_QP, IB_USER_VERBS_CMD_QUERY_QP,
          IB_USER_VERBS_CMD_DESTROY_QP, IB_USER_VERBS_CMD_CREATE_SRQ, IB_USER_VERBS_CMD_MODIFY_SRQ,
          IB_USER_VERBS_CMD_QUERY_SRQ, IB_USER_VERBS_CMD_DESTROY_SRQ}) {
        EXPECT_EQ(command(number, 2), EINVAL) << "too short: " << number;
        EXPECT_EQ(command(number, sizeof request), EINVAL) << "of no object: " << number;
    }
    EXPECT_EQ(command(IB_USER_VERBS_CMD_ATTACH_MCAST, sizeof request), EOPNOTSUPP);
    EXPECT_EQ(::close(async), 0);
}

}  // namespace
}  // namespace mlx5_model
