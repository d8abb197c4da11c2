// A worker that the test turns by hand, and the requests that a test submits to it.
//
// Requests read from `source`, and write and receive into `target`. A test sets the properties that matter to it where
// it makes the request, as in write(7, {.flags = 0}), or changes them before it submits the request.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepped_world.hpp"

namespace pollcore::testing {

/// Receives begin here in `target`, apart from the target of writes.
inline constexpr std::size_t kReceived = 4096;

/// Properties of a send queue request that a test may change.
struct RequestShape {
    const SteppedWorld::Qp* qp = nullptr;  ///< null: a
    std::uint8_t flags = kSignaled;
    std::uint32_t length = 8;
    std::size_t from = 0;  ///< place in `source`
    std::size_t to = 0;    ///< place in `target`
};
/// Properties of a receive that a test may change.
struct RecvShape {
    const SteppedWorld::Qp* qp = nullptr;    ///< null: b
    const SteppedWorld::Srq* srq = nullptr;  ///< not null: a receive of this shared queue, and of no queue pair
    std::uint32_t length = 64;
    std::size_t to = kReceived;  ///< place in `target`
};

/// Flags of a request that is signaled only if `signaled`.
constexpr std::uint8_t signaled_if(bool signaled) {
    return signaled ? std::uint8_t{kSignaled} : std::uint8_t{0};
}

class WorkerFixture : public ::testing::Test {
protected:
    using Buffer = SteppedWorld::Buffer;
    using Qp = SteppedWorld::Qp;

    /// Makes a world with one session, and with a and b on one CQ. A second call makes a new world.
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

    /// Makes two queue pairs that are connected to each other. The first two of a world are a and b.
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
    /// Connects each with the other.
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
    /// Binds the window to all of `memory`, for writes, under its next key.
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
    /// Takes its operands from a write, whatever send queue opcode it has.
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
    /// Submits all of them as one burst.
    void submit(std::span<const WorkRequest> requests) {
        ASSERT_EQ(world->session(session_of(requests.front())).try_submit(requests).accepted, requests.size());
    }

    /// The session that submits a request if the test names none.
    [[nodiscard]] virtual std::uint32_t session_of(const WorkRequest&) const { return 0; }

    /// Makes `n` steps; time goes on.
    void turn(int n = 50) {
        for (int i = 0; i < n; ++i) {
            world->step();
            world->now += 1000;
        }
    }
    /// Steps until `n` completions have come; time stands still.
    std::vector<Completion> step_until(std::size_t n, std::uint32_t session = 0) {
        std::vector<Completion> all;
        for (int i = 0; i < 200 && all.size() < n; ++i) {
            world->step();
            const std::vector<Completion> some = world->poll(session);
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    }
    /// Steps until a completion has come, which is to be the only one.
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

/// Two sessions of a worker, and pairs of queue pairs between them: from[i] of one session sends to to[i] of the other.
class SenderReceiverFixture : public WorkerFixture {
protected:
    static constexpr std::uint32_t kSender = 0;
    static constexpr std::uint32_t kReceiver = 1;

    /// Makes a world with the two sessions and a CQ, without queue pairs.
    void make_world(SteppedWorld::Options options = {}, std::uint32_t cqe = 1024) {
        from.clear();
        to.clear();
        WorkerFixture::make_world(std::move(options));
        world->add_session();
        world->add_session();
        world->add_cq(cqe);
    }
    /// Makes two queue pairs that are connected to each other: the next of `from` and of `to`.
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
