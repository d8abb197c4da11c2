// Checks the chains (lists of requests that the worker posts by one call) as the NIC reads them: each request is one
// WQE with its own addresses, the WQEs are in order, and each WQE has its own completion. Chains with planted faults
// prove that the test notices differences.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include "device/verbs/verbs_device.hpp"
#include "mlx5_model.hpp"
#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

using test::Mlx5Model;

/// A copy of a chain, which may be changed before libmlx5 sees it.
struct Chain {
    std::vector<ibv_send_wr> requests;
    std::vector<ibv_sge> sges;
};
using Plant = std::function<void(Chain&)>;

Plant planted;
int (*post_of_library)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int post_planted(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    Chain chain;
    for (const ibv_send_wr* one = wr; one != nullptr; one = one->next) {
        chain.requests.push_back(*one);
        chain.sges.push_back(*one->sg_list);
    }
    for (std::size_t i = 0; i < chain.requests.size(); ++i) {
        chain.requests[i].sg_list = &chain.sges[i];
        chain.requests[i].next = i + 1 < chain.requests.size() ? &chain.requests[i + 1] : nullptr;
    }
    if (planted) {
        planted(chain);
    }
    return post_of_library(qp, chain.requests.data(), bad);
}

class Chains : public ::testing::Test {
protected:
    static constexpr std::uint32_t kRequests = 16;
    static constexpr std::uint32_t kBytes = 8;
    static constexpr std::size_t kApart = 64;

    Chains() {
        if (!Mlx5Model::is_there()) {
            throw std::logic_error("load the model of an mlx5 HCA before this program: tests/mlx5_model/README.md");
        }
        Mlx5Model::set_pace("hand");
        SteppedWorld::Options options;
        options.open = [] { return VerbsDevice::open("mlx5_0", 1); };
        world = std::make_unique<SteppedWorld>(std::move(options));
        world->add_session();
        world->add_cq();
        qp = &world->add_qp({.shares = {{0, 64, 1}}, .sges_max = 1});
        world->connect(*qp, *qp);
        memory = &world->add_buffer(2 * kRequests * kApart);
        ibv_context_ops& ops = world->device->context()->ops;
        post_of_library = std::exchange(ops.post_send, post_planted);
        Mlx5Model::watch(true);
    }
    ~Chains() override {
        planted = nullptr;
        Mlx5Model::watch(false);
        world.reset();
        const char* pace = std::getenv("MLX5_MODEL");
        Mlx5Model::set_pace(pace != nullptr ? pace : "poll");
    }

    [[nodiscard]] WorkRequest request(std::uint32_t number) const {
        return {.tag = 1000 + number,
                .sge = memory->sge(kBytes, number * kApart),
                .remote_addr = memory->addr((kRequests + number) * kApart),
                .rkey = memory->rkey(),
                .qp = qp->handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }

    /// Submits a burst and returns a description of the first difference between the outcome and the submitted
    /// requests; empty if there is none.
    std::string differences() {
        std::vector<WorkRequest> requests;
        for (std::uint32_t i = 0; i < kRequests; ++i) {
            requests.push_back(request(i));
            std::fill_n(memory->data(i * kApart), kBytes, static_cast<std::byte>(0x40 + i));
            std::fill_n(memory->data((kRequests + i) * kApart), kBytes, std::byte{0});
        }
        EXPECT_EQ(world->session().try_submit(requests).accepted, kRequests);
        std::vector<Completion> completions;
        for (int round = 0; round < 20; ++round) {
            world->step();
            while (Mlx5Model::serve(qp->qp->qp_num, 64) != 0) {
            }
            for (const Completion& completion : world->poll()) {
                completions.push_back(completion);
            }
        }
        const std::vector<mlx5_model_wqe> wqes = Mlx5Model::watched();
        if (wqes.size() != kRequests) {
            return "the NIC read " + std::to_string(wqes.size()) + " WQEs";
        }
        for (std::uint32_t i = 0; i < kRequests; ++i) {
            const mlx5_model_wqe& wqe = wqes[i];
            if (wqe.qpn != qp->qp->qp_num || wqe.opcode != MLX5_OPCODE_RDMA_WRITE || wqe.segments != 1 ||
                wqe.length != kBytes || wqe.address != requests[i].sge.addr || wqe.lkey != requests[i].sge.lkey ||
                wqe.remote_address != requests[i].remote_addr || wqe.rkey != requests[i].rkey || wqe.signaled == 0) {
                return "WQE " + std::to_string(i) + " is another";
            }
            if (std::memcmp(memory->data(i * kApart), memory->data((kRequests + i) * kApart), kBytes) != 0) {
                return "the bytes of request " + std::to_string(i) + " did not arrive";
            }
        }
        if (completions.size() != kRequests) {
            return std::to_string(completions.size()) + " completions came";
        }
        for (std::uint32_t i = 0; i < kRequests; ++i) {
            if (completions[i].tag != requests[i].tag || completions[i].status != Status::success) {
                return "completion " + std::to_string(i) + " is another's";
            }
        }
        return "";
    }

    std::unique_ptr<SteppedWorld> world;
    SteppedWorld::Qp* qp = nullptr;
    SteppedWorld::Buffer* memory = nullptr;
};

TEST_F(Chains, AreCarriedOutAsTheyWereSubmitted) {
    for (int burst = 0; burst < 20; ++burst) {  // over several laps of the send queue
        EXPECT_EQ(differences(), "");
    }
}

TEST_F(Chains, WithAWrIdOfAnotherRequestAreSeen) {
    planted = [](Chain& chain) { std::swap(chain.requests[3].wr_id, chain.requests[4].wr_id); };
    EXPECT_NE(differences(), "");
}

TEST_F(Chains, WithoutANextAreSeen) {
    planted = [](Chain& chain) { chain.requests[7].next = nullptr; };
    EXPECT_NE(differences(), "");
}

TEST_F(Chains, WithAnSgeThatIsUsedTwiceAreSeen) {
    planted = [](Chain& chain) { chain.requests[5].sg_list = chain.requests[4].sg_list; };
    EXPECT_NE(differences(), "");
}

TEST_F(Chains, WithALengthThatIsLeftOverAreSeen) {
    planted = [](Chain& chain) { chain.sges[2].length = kBytes / 2; };
    EXPECT_NE(differences(), "");
}

TEST_F(Chains, WithoutTheirSignalAreSeen) {
    planted = [](Chain& chain) { chain.requests[kRequests - 1].send_flags = 0; };
    EXPECT_NE(differences(), "");
}

TEST_F(Chains, WithARemoteAddressOfAnotherRequestAreSeen) {
    planted = [](Chain& chain) { chain.requests[9].wr.rdma.remote_addr = chain.requests[8].wr.rdma.remote_addr; };
    EXPECT_NE(differences(), "");
}

}  // namespace
}  // namespace pollcore::testing
