// No wake-up is lost (I8). Work arrives while a worker falls asleep. The tests run the worker's own code in every
// order in which these two can meet. Two of the tests limit the number of preemptions.
#include <poll.h>

#include <array>
#include <memory>

#include <gtest/gtest.h>

#include "sim/bug_kinds.hpp"
#include "sim/explorer.hpp"
#include "stepped_world.hpp"
#include "worker/run.hpp"

namespace pollcore::sim {
namespace {

using testing::SteppedWorld;

// A worker that sleeps whenever it can. Two of its queue pairs are connected to each other, so that it completes
// requests on them without help. The peer of the third queue pair belongs to another thread.
struct Scene {
    Scene() : world(options()) {
        SteppedWorld::QpShape shape;
        shape.shares = {{0, 4, 4}};
        shape.sges_max = 1;
        own = world.pair(shape).first;
        near = &world.add_qp(shape);
        other_pd = {world.device->create_pd(), {world.device.get()}};
        other_domain = world.device->create_thread_domain();
        other_cq = {world.device->create_cq({.cqe = 64, .domain = other_domain.get()}), {world.device.get()}};
        QpOptions make{
            .pd = other_pd.get(),
            .domain = other_domain.get(),
            .send_cq = other_cq.get(),
            .recv_cq = other_cq.get(),
            .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0}};
        other = {world.device->create_qp(make), {world.device.get()}};
        connect();
        memory = &world.register_memory(bytes.data(), bytes.size());
    }
    SteppedWorld::Options options() {
        SteppedWorld::Options options;
        options.sleeps = true;
        options.wait = [this] {
            if (Explorer* explorer = Explorer::current(); explorer != nullptr) {
                explorer->yield();  // the worker runs in a thread of the explorer
            } else {
                world.step();
            }
        };
        options.worker.qps_max = 4;
        options.device.memory_regions_max = 16;
        return options;
    }
    void connect() {
        auto init = to_init(1, access_flags(RemoteAccess::all()));
        world.device->modify(other.get(), init.attr, init.mask);
        const GidEntry gid = world.device->gids().front();
        QpInfo peer;
        std::memcpy(peer.gid.data(), gid.gid.raw, 16);
        peer.qp_num = near->qp->qp_num;
        peer.psn = near->psn;
        auto rtr = to_rtr(peer, {}, 1, 0, IBV_MTU_1024);
        world.device->modify(other.get(), rtr.attr, rtr.mask);
        auto rts = to_rts(17, {});
        world.device->modify(other.get(), rts.attr, rts.mask);
        peer.qp_num = other->qp_num;
        peer.psn = 17;
        world.proxy.while_parked(near->handle(), QpState::init, QpState::ready, Status::success, [&] {
            auto near_rtr = to_rtr(peer, {}, 1, 0, IBV_MTU_1024);
            world.device->modify(near->qp.get(), near_rtr.attr, near_rtr.mask);
            auto near_rts = to_rts(near->psn, {});
            world.device->modify(near->qp.get(), near_rts.attr, near_rts.mask);
        });
    }

    // The worker's thread; runs until `stop`.
    void work(Explorer& explorer) {
        struct Ways final : IdleWays {
            explicit Ways(Explorer& of) : explorer(of) {}
            void monitor(const RingConsumer<WorkRequest>*) noexcept override {}
            void yield() noexcept override {}
            void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t) noexcept override {
                explorer.wait("sleeps", [&] { return deadline_ns == 0 || ::poll(fds.data(), fds.size(), 0) > 0; });
            }
            Explorer& explorer;
        } ways(explorer);
        while (!stop) {
            explorer.point("steps");
            if (world.worker.step(world.now) != 0) {
                continue;
            }
            if (world.worker.fall_asleep(world.now)) {
                sleep_until_woken(world.worker, stop, ways, [this] { return world.now; });
            } else {
                explorer.yield();
            }
        }
    }
    // An application that sleeps until it has `wanted` completions, and then stops the worker.
    void take(Explorer& explorer, std::size_t wanted) {
        Session& session = world.session();
        while (completed < wanted) {
            Completion some[4];
            if (const std::size_t n = session.poll(some); n > 0) {
                completed += n;
            } else if (session.arm()) {
                explorer.wait("the application sleeps", [&] {
                    pollfd fd{.fd = session.event_fd(), .events = POLLIN, .revents = 0};
                    return ::poll(&fd, 1, 0) == 1;
                });
            }
        }
        stop = true;
        signal_event(world.worker.bell());
    }
    [[nodiscard]] WorkRequest write(std::uint64_t tag) const { return SteppedWorld::write(tag, *own, *memory); }
    // The thread of the third queue pair's peer.
    void send_from_other() {
        ibv_send_wr wr{};
        ibv_send_wr* bad = nullptr;
        wr.opcode = IBV_WR_SEND;
        ASSERT_EQ(ibv_post_send(other.get(), &wr, &bad), 0);
        ibv_wc wc;
        (void)ibv_poll_cq(other_cq.get(), 1, &wc);  // a poll makes the software device send the packet
    }

    alignas(64) std::array<std::byte, 128> bytes{};
    SteppedWorld world;
    SteppedWorld::Qp* own = nullptr;
    SteppedWorld::Qp* near = nullptr;
    UniquePd other_pd;
    std::unique_ptr<ThreadDomain> other_domain;
    UniqueCq other_cq;
    UniqueQp other;
    ibv_mr* memory = nullptr;
    std::atomic<bool> stop{false};
    std::size_t completed = 0;
};

class Interleavings : public ::testing::Test {
protected:
    ~Interleavings() override { plant(Bug::none); }

    /// Runs all interleavings and returns their number. Ends at the first that gets stuck, and describes it in `stuck`.
    std::uint64_t all(const std::function<std::vector<Explorer::Thread>(Scene&)>& threads,
                      std::uint32_t preemptions_max = ~std::uint32_t{0}) {
        stuck.clear();
        return explorer.explore(
            [&] {
                scene.reset();
                scene = std::make_unique<Scene>();
                return Explorer::Run{threads(*scene), [] {}};
            },
            [&](const std::string& what) { stuck = what; }, preemptions_max);
    }
    // Only the session brings work.
    std::vector<Explorer::Thread> submissions(Scene& here) {
        return {{"worker", [&] { here.work(explorer); }}, {"application", [&] {
                                                               (void)here.world.session().try_submit(here.write(1));
                                                               here.take(explorer, 1);
                                                           }}};
    }
    // A message arrives while the worker falls asleep.
    std::vector<Explorer::Thread> message(Scene& here) {
        WorkRequest receive{.tag = 1, .qp = here.near->handle(), .opcode = Opcode::recv};
        EXPECT_EQ(here.world.session().try_submit(receive), Refusal::none);
        (void)here.world.step(2);
        return {{"worker", [&] { here.work(explorer); }},
                {"application", [&] { here.take(explorer, 1); }},
                {"peer", [&] { here.send_from_other(); }}};
    }

    Explorer explorer;
    std::unique_ptr<Scene> scene;
    std::string stuck;
};

TEST_F(Interleavings, OfASubmissionLoseNoWakeUp) {
    const std::uint64_t runs = all([this](Scene& here) { return submissions(here); });
    EXPECT_EQ(stuck, "");
    EXPECT_GT(runs, 100u);
    RecordProperty("runs", std::to_string(runs));
}

TEST_F(Interleavings, OfAMessageLoseNoWakeUp) {
    const std::uint64_t runs = all([this](Scene& here) { return message(here); });
    EXPECT_EQ(stuck, "");
    EXPECT_GT(runs, 100u);
    RecordProperty("runs", std::to_string(runs));
}

// All interleavings would take hours, so this test makes only those with at most three preemptions.
TEST_F(Interleavings, OfASubmissionAndAMessageLoseNoWakeUp) {
    const std::uint64_t runs = all(
        [this](Scene& here) {
            WorkRequest receive{.tag = 1, .qp = here.near->handle(), .opcode = Opcode::recv};
            EXPECT_EQ(here.world.session().try_submit(receive), Refusal::none);
            (void)here.world.step(2);
            return std::vector<Explorer::Thread>{{"worker", [&] { here.work(explorer); }},
                                                 {"application",
                                                  [&] {
                                                      (void)here.world.session().try_submit(here.write(2));
                                                      here.take(explorer, 2);
                                                  }},
                                                 {"peer", [&] { here.send_from_other(); }}};
        },
        3);
    EXPECT_EQ(stuck, "");
    EXPECT_GT(runs, 500u);
    RecordProperty("runs", std::to_string(runs));
}

TEST_F(Interleavings, OfACommandLoseNoWakeUp) {
    const std::uint64_t runs = all(
        [this](Scene& here) {
            return std::vector<Explorer::Thread>{{"worker", [&] { here.work(explorer); }},
                                                 {"control", [&] {
                                                      here.world.proxy.park(here.near->handle());
                                                      here.world.proxy.unpark(here.near->handle(), QpState::ready);
                                                      here.stop = true;
                                                      signal_event(here.world.worker.bell());
                                                  }}};
        },
        4);
    EXPECT_EQ(stuck, "");
    EXPECT_GT(runs, 20u);
    RecordProperty("runs", std::to_string(runs));
}

// The exploration finds these planted bugs, each of which loses a wake-up. The random simulation looks for them, too.
TEST_F(Interleavings, FindWhatLosesAWakeUp) {
    for (const Bug bug : {Bug::no_last_look, Bug::late_word, Bug::careless_sleeper}) {
        plant(bug);
        (void)all([this](Scene& here) { return submissions(here); });
        EXPECT_NE(stuck, "") << "bug " << static_cast<int>(bug);
    }
    plant(Bug::no_last_look);
    (void)all([this](Scene& here) { return message(here); });
    EXPECT_NE(stuck, "");
}

}  // namespace
}  // namespace pollcore::sim
