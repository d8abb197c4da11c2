// A worker that the test steps by hand, and the requests that a test submits to it.
//
// Sends and writes take their bytes from `source`. Writes and receives put them into `target`. When a test makes a
// request, it names only the properties that matter to it, as in write(7, {.flags = 0}). It may also change them before
// it submits the request.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepped_world.hpp"

namespace pollcore::testing {

/// Offset in `target` where receives begin, apart from the place that writes use.
inline constexpr std::size_t kReceived = 4096;

/// The properties of a send queue request that a test may choose.
struct RequestShape {
    const SteppedWorld::Qp* qp = nullptr;  ///< null means queue pair a
    std::uint8_t flags = kSignaled;
    std::uint32_t length = 8;
    std::size_t from = 0;  ///< offset in `source`
    std::size_t to = 0;    ///< offset in `target`
};
/// The properties of a receive that a test may choose.
struct RecvShape {
    const SteppedWorld::Qp* qp = nullptr;  ///< null means queue pair b
    /// If not null, the receive goes to this shared receive queue instead of a queue pair.
    const SteppedWorld::Srq* srq = nullptr;
    std::uint32_t length = 64;
    std::size_t to = kReceived;  ///< offset in `target`
};

/// The flags of a request: kSignaled if `signaled`, and none otherwise.
constexpr std::uint8_t signaled_if(bool signaled) {
    return signaled ? std::uint8_t{kSignaled} : std::uint8_t{0};
}

class WorkerFixture : public ::testing::Test {
protected:
    using Buffer = SteppedWorld::Buffer;
    using Qp = SteppedWorld::Qp;

    /// Makes a world with one session, and with queue pairs a and b on one CQ. A second call replaces the world by a
    /// new one.
    void make(const SteppedWorld::QpShape& shape = {}, SteppedWorld::Options options = {}) {
        make_world(std::move(options));
        world->add_session();
        world->add_cq();
        pair(shape);
    }
    /// Makes a world without sessions, CQs and queue pairs.
    void make_world(SteppedWorld::Options options = {}) {
        a = b = nullptr;
        world = std::make_unique<SteppedWorld>(std::move(options));
        source = &buffer();
        target = &buffer();
        for (std::size_t i = 0; i < source->memory.size(); ++i) {
            *source->data(i) = static_cast<std::byte>(i * 7 + 1);
        }
    }

    /// Makes two queue pairs that are connected to each other. The first two queue pairs of a world are a and b.
    std::pair<Qp*, Qp*> pair(const SteppedWorld::QpShape& near, const SteppedWorld::QpShape& far,
                             const PathAttributes& path = {}, const PathAttributes& back = {}) {
        Qp& one = world->add_qp(near);
        Qp& other = world->add_qp(far);
        connect(one, other, path, back);
        if (a == nullptr) {
            a = &one;
            b = &other;
        }
        return {&one, &other};
    }
    std::pair<Qp*, Qp*> pair(const SteppedWorld::QpShape& shape = {}) { return pair(shape, shape); }
    /// Connects each of the two queue pairs to the other.
    void connect(Qp& one, Qp& other, const PathAttributes& path = {}, const PathAttributes& back = {}) {
        world->connect(one, other, path);
        world->connect(other, one, back);
    }

    Buffer& buffer(std::size_t bytes = 8192, int access = SteppedWorld::kAllButBind) {
        return world->add_buffer(bytes, access);
    }

    [[nodiscard]] WorkRequest write(std::uint64_t tag, const RequestShape& shape = {}) const {
        return {.tag = tag,
                .sge = source->sge(shape.length, shape.from),
                .remote_addr = target->addr(shape.to),
                .rkey = target->rkey(),
                .qp = (shape.qp != nullptr ? shape.qp : a)->handle(),
                .opcode = Opcode::rdma_write,
                .flags = shape.flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest send(std::uint64_t tag, const RequestShape& shape = {}) const {
        return {.tag = tag,
                .sge = source->sge(shape.length, shape.from),
                .qp = (shape.qp != nullptr ? shape.qp : a)->handle(),
                .opcode = Opcode::send,
                .flags = shape.flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest recv(std::uint64_t tag, const RecvShape& shape = {}) const {
        WorkRequest request{
            .tag = tag, .sge = target->sge(shape.length, shape.to), .opcode = Opcode::recv, .num_sge = 1};
        if (shape.srq != nullptr) {
            request.srq = shape.srq->handle();
            request.opcode = Opcode::srq_recv;
        } else {
            request.qp = (shape.qp != nullptr ? shape.qp : b)->handle();
        }
        return request;
    }
    /// A request that binds the window to all of `memory`, with write access, under the window's next key.
    [[nodiscard]] static WorkRequest bind(std::uint64_t tag, const Qp& qp, const SteppedWorld::Window& window,
                                          const Buffer& memory, MrHandle region) {
        return {.tag = tag,
                .bind = {window.handle(), region, memory.memory.size()},
                .remote_addr = memory.addr(),
                .bind_access = kWindowWrite,
                .rkey = next_rkey(window.mw->rkey),
                .qp = qp.handle(),
                .opcode = Opcode::bind_mw,
                .flags = kSignaled};
    }
    /// Makes a request of any send queue opcode, with the operands of a write.
    [[nodiscard]] WorkRequest request(Opcode opcode, std::uint64_t tag, const RequestShape& shape = {}) const {
        WorkRequest request = write(tag, shape);
        request.opcode = opcode;
        return request;
    }

    Refusal try_submit(const WorkRequest& request, std::uint32_t session) {
        return world->session(session).try_submit(request);
    }
    Refusal try_submit(const WorkRequest& request) { return try_submit(request, session_of(request)); }
    void submit(const WorkRequest& request, std::uint32_t session) {
        ASSERT_EQ(try_submit(request, session), Refusal::none);
    }
    void submit(const WorkRequest& request) { ASSERT_EQ(try_submit(request), Refusal::none); }
    /// Submits all the requests as one burst.
    void submit(std::span<const WorkRequest> requests) {
        ASSERT_EQ(world->session(session_of(requests.front())).try_submit(requests).accepted, requests.size());
    }

    /// The session that submits a request, unless the test names one.
    [[nodiscard]] virtual std::uint32_t session_of(const WorkRequest&) const { return 0; }

    /// Makes `n` steps, and the clock advances with each step.
    void turn(int n = 50) {
        for (int i = 0; i < n; ++i) {
            world->step();
            world->now += 1000;
        }
    }
    /// Steps until `n` completions have come. The clock stands still.
    std::vector<Completion> step_until(std::size_t n, std::uint32_t session = 0) {
        std::vector<Completion> all;
        for (int i = 0; i < 200 && all.size() < n; ++i) {
            world->step();
            const std::vector<Completion> some = world->poll(session);
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    }
    /// Steps until a completion has come, and expects no second one.
    Completion one(std::uint32_t session = 0) {
        const std::vector<Completion> all = world->await(1, session);
        EXPECT_EQ(all.size(), 1u);
        return all.empty() ? Completion{} : all[0];
    }

    std::unique_ptr<SteppedWorld> world;
    Buffer* source = nullptr;
    Buffer* target = nullptr;
    Qp* a = nullptr;
    Qp* b = nullptr;
};

/// Two sessions of a worker, and pairs of queue pairs between them: from[i] of one session sends to to[i] of the other
/// session.
class SenderReceiverFixture : public WorkerFixture {
protected:
    static constexpr std::uint32_t kSender = 0;
    static constexpr std::uint32_t kReceiver = 1;

    /// Makes a world with the two sessions and a CQ, but without queue pairs.
    void make_world(SteppedWorld::Options options = {}, std::uint32_t cqe = 1024) {
        from.clear();
        to.clear();
        WorkerFixture::make_world(std::move(options));
        world->add_session();
        world->add_session();
        world->add_cq(cqe);
    }
    /// Makes two queue pairs that are connected to each other, and appends them to `from` and `to`.
    void add_pair(const SteppedWorld::QpShape& sender, const SteppedWorld::QpShape& receiver,
                  const PathAttributes& path = {}, const PathAttributes& back = {}) {
        const auto [near, far] = pair(sender, receiver, path, back);
        from.push_back(near);
        to.push_back(far);
    }

    [[nodiscard]] std::uint32_t session_of(const WorkRequest& request) const override {
        return is_recv(request.opcode) ? kReceiver : kSender;
    }

    std::vector<Qp*> from;
    std::vector<Qp*> to;
};

}  // namespace pollcore::testing
