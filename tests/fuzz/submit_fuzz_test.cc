// Submits random work requests, and random bytes in place of work requests. Nothing may crash, no request may be lost,
// and a well-behaved session must still be served.
//
//   POLLCORE_FUZZ_SECONDS   how long each test goes on (2)
//   POLLCORE_FUZZ_SEED      to repeat a run; each test prints its seed at the start
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

class SubmitFuzz : public ::testing::Test {
protected:
    SubmitFuzz()
        : seed_(from_environment("POLLCORE_FUZZ_SEED", std::random_device{}())),
          random_(seed_),
          deadline_(std::chrono::steady_clock::now() +
                    std::chrono::seconds(from_environment("POLLCORE_FUZZ_SECONDS", 2))) {
        std::printf("POLLCORE_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed_));
        world_.add_session();
        world_.add_cq();
        srq_ = &world_.add_srq({.session = 0, .depth = 8});
        memory_ = &world_.add_buffer(8192, SteppedWorld::kAllButBind | IBV_ACCESS_MW_BIND);
        region_handle_ = world_.make_bindable(*memory_->mr);
        for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_MW_TYPE_2}) {
            windows_.push_back(&world_.add_window(type));
        }
        ah_ = world_.make_ah({0, 1});
        world_.proxy.add_ah(ah_);
        make_qps();
    }

    bool time_left() { return std::chrono::steady_clock::now() < deadline_; }
    std::uint64_t number(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random_); }
    bool one_in(std::uint64_t n) { return number(n - 1) == 0; }

    // Makes a connected pair and a third queue pair. In the pair, a_ has its own receive queue, and b_ uses the shared
    // one. The third, c_, sends datagrams to itself.
    void make_qps() {
        a_ = &world_.add_qp({.shares = shares_, .sges_max = 4, .inline_max = 64});
        std::vector<ShareOptions> sends_only = shares_;
        for (ShareOptions& share : sends_only) {
            share.recv_depth = 0;
        }
        b_ = &world_.add_qp({.shares = sends_only, .sges_max = 4, .inline_max = 64, .srq = srq_});
        world_.connect(*a_, *b_);
        world_.connect(*b_, *a_);
        c_ = &world_.add_qp({.shares = shares_, .sges_max = 4, .inline_max = 64, .type = QpType::ud});
    }
    void close_qps() {
        for (SteppedWorld::Qp* qp : {a_, b_, c_}) {
            EXPECT_TRUE(world_.close(*qp));
        }
        for (SteppedWorld::Window* window : windows_) {
            world_.renew(*window);
        }
    }
    static std::string describe(const SteppedWorld::Qp& qp) {
        return "QP " + std::to_string(qp.qp->qp_num) + ": state " + std::to_string(static_cast<int>(qp.end->life())) +
               ", sends in flight " + std::to_string(qp.end->sends().entries().size()) + ", receives " +
               std::to_string(qp.end->recvs().size()) + "\n";
    }
    void share_with(std::vector<ShareOptions> shares) {
        shares_ = std::move(shares);
        close_qps();
        make_qps();
    }
    void replace_broken() {
        for (const SteppedWorld::Qp* qp : {a_, b_, c_}) {
            if (world_.session().state(qp->handle()) == QpState::error) {
                share_with(shares_);
                return;
            }
        }
    }

    Sge any_sge() {
        Sge sge{.addr = memory_->addr(number(memory_->memory.size() - 1)),
                .length = static_cast<std::uint32_t>(number(256)),
                .lkey = memory_->lkey()};
        if (one_in(16)) {
            sge.addr = random_();
        }
        if (one_in(16)) {
            sge.length = static_cast<std::uint32_t>(random_());
        }
        if (one_in(16)) {
            sge.lkey = static_cast<std::uint32_t>(random_());
        }
        return sge;
    }

    // Returns a request of random bytes, in which most fields are usually made meaningful, so that many requests pass
    // the first check.
    WorkRequest any_request() {
        std::array<std::uint64_t, sizeof(WorkRequest) / 8> words;
        for (std::uint64_t& word : words) {
            word = random_();
        }
        auto request = std::bit_cast<WorkRequest>(words);
        if (!one_in(8)) {
            request.qp = (one_in(3) ? a_ : one_in(2) ? b_ : c_)->handle();
        }
        if (!one_in(8)) {
            request.opcode = one_in(3) ? one_in(2) ? Opcode::recv : Opcode::srq_recv : static_cast<Opcode>(number(10));
        }
        if (request.opcode == Opcode::srq_recv && !one_in(8)) {
            request.srq = srq_->handle();
        }
        if (!one_in(8)) {
            request.flags = is_recv(request.opcode) ? std::uint8_t{0} : static_cast<std::uint8_t>(number(15));
        }
        if (!one_in(8)) {
            request.num_sge = static_cast<std::uint8_t>(number(4));
        }
        if (!one_in(4)) {
            request.sge = any_sge();
        }
        if (!one_in(4)) {
            request.remote_addr = memory_->addr(number(memory_->memory.size() - 1));
            request.rkey = one_in(8) ? windows_[number(windows_.size() - 1)]->mw->rkey : memory_->rkey();
        }
        if (request.qp == c_->handle() && !is_recv(request.opcode) && !one_in(8)) {
            request.ud = {ah_.handle, one_in(8) ? static_cast<std::uint32_t>(random_()) : c_->qp->qp_num};
            request.remote_qkey = SteppedWorld::kQkey;
        }
        if (request.opcode >= Opcode::local_inv && !is_recv(request.opcode) && !one_in(4)) {
            concern_a_window(request);
        }
        return request;
    }

    // Usually makes a request about windows valid, so that binds succeed, windows are bound elsewhere and invalidated,
    // and keys are used again.
    void concern_a_window(WorkRequest& request) {
        const SteppedWorld::Window& window = *windows_[number(windows_.size() - 1)];
        if (is_local(request.opcode)) {
            request.num_sge = 0;
            request.flags &= kSignaled | kFence;
        }
        if (request.opcode == Opcode::bind_mw) {
            request.bind = {window.handle(), region_handle_, one_in(8) ? random_() : number(512)};
            request.bind_access = static_cast<std::uint32_t>(number(7)) << 1;
            request.rkey = next_rkey(window.mw->rkey);
        } else {
            request.invalidate_rkey = window.mw->rkey;
        }
    }

    const std::uint64_t seed_;
    std::mt19937_64 random_;
    const std::chrono::steady_clock::time_point deadline_;
    SteppedWorld world_;
    std::vector<ShareOptions> shares_{{0, 8, 8}};
    SteppedWorld::Buffer* memory_ = nullptr;
    SteppedWorld::Srq* srq_ = nullptr;
    MrHandle region_handle_;
    std::vector<SteppedWorld::Window*> windows_;
    WorkerAh ah_;
    SteppedWorld::Qp* a_ = nullptr;
    SteppedWorld::Qp* b_ = nullptr;
    SteppedWorld::Qp* c_ = nullptr;
};

TEST_F(SubmitFuzz, EveryRequestIsRefusedOrComesToItsEnd) {
    struct Outstanding {
        bool signaled = false;
    };
    std::unordered_map<std::uint64_t, Outstanding> outstanding;
    std::uint64_t next_tag = 0;
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;
    std::uint64_t failed = 0;
    std::uint64_t unsignaled_failed = 0;
    const auto take = [&] {
        for (const Completion& completion : world_.poll()) {
            const auto found = outstanding.find(completion.tag);
            ASSERT_NE(found, outstanding.end())
                << "tag " << completion.tag << " completes twice, or was never submitted";
            failed += !completion.ok();
            EXPECT_TRUE(found->second.signaled || !completion.ok());
            unsignaled_failed += !found->second.signaled;
            outstanding.erase(found);
        }
    };
    const auto keep = [&](const WorkRequest& request, Refusal refusal) {
        if (refusal == Refusal::none) {
            ++accepted;
            outstanding[request.tag] = {is_recv(request.opcode) || (request.flags & kSignaled) != 0};
        } else {
            ++refused;
        }
    };
    const auto next = [&] {
        WorkRequest request = any_request();
        request.tag = next_tag++;
        if ((request.flags & kInline) != 0) {  // the session reads an inline payload, so it must be there
            request.sge = memory_->sge(static_cast<std::uint32_t>(number(80)), number(1024));
        }
        return request;
    };
    while (time_left()) {
        for (int i = 0; i < 64; ++i) {
            const WorkRequest request = next();
            switch (number(3)) {
                case 0: {
                    std::array<Sge, 6> sges;
                    for (Sge& sge : sges) {
                        sge = any_sge();
                    }
                    keep(request, world_.session().try_submit(request, std::span(sges).first(number(sges.size()))));
                    break;
                }
                case 1:
                    keep(request,
                         world_.session().try_submit_inline(request, std::span(memory_->memory).first(number(80))));
                    break;
                case 2: {
                    std::vector<WorkRequest> burst{request};
                    while (!one_in(8)) {
                        burst.push_back(next());
                    }
                    for (std::span<const WorkRequest> rest = burst; !rest.empty();) {
                        const Submitted some = world_.session().try_submit(rest);
                        for (const WorkRequest& one : rest.first(some.accepted)) {
                            keep(one, Refusal::none);
                        }
                        rest = rest.subspan(some.accepted);
                        if (!rest.empty()) {
                            keep(rest.front(), some.refusal);
                            rest = rest.subspan(1);
                        }
                    }
                    break;
                }
                default: keep(request, world_.session().try_submit(request)); break;
            }
            if (one_in(4)) {
                world_.step();
                world_.now += number(100'000);
                take();
            }
        }
        world_.step(4);
        take();
        replace_broken();
        take();
    }
    close_qps();
    world_.close(*srq_);
    take();
    // The remaining requests were unsignaled and succeeded.
    for (const auto& [tag, request] : outstanding) {
        EXPECT_FALSE(request.signaled) << "tag " << tag << " never completed";
    }
    const SessionFigures figures = world_.session().figures();
    EXPECT_EQ(figures.accepted, accepted);
    EXPECT_EQ(figures.retired, outstanding.size());
    EXPECT_EQ(figures.completed + figures.retired, accepted);
    std::printf("%llu accepted, %llu of them failed (%llu unsignaled), %llu refused\n",
                static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(failed),
                static_cast<unsigned long long>(unsignaled_failed), static_cast<unsigned long long>(refused));
    EXPECT_GT(accepted, 1000u);
    EXPECT_GT(refused, 1000u);
    EXPECT_GT(failed, 100u);
}

// The test writes slots straight into the ring, not through Session, as a hostile process could.
TEST_F(SubmitFuzz, RandomSlotsOfOneSessionDoNotHarmAnother) {
    std::uint64_t hostile_sessions = 0;
    std::uint64_t slots = 0;
    std::uint64_t served = 0;
    while (time_left()) {
        const std::uint32_t index = world_.add_session();
        ++hostile_sessions;
        share_with({{0, 8, 8}, {index, 8, 0}});
        SteppedWorld::End& end = *world_.ends[index];
        RingProducer<WorkRequest> submissions = world_.raw(index);
        RingConsumer<Completion> completions(at_offset<void>(end.block, end.layout.completions()),
                                             end.layout.completion_slots);
        for (int round = 0; round < 200 && time_left(); ++round) {
            const std::size_t n = submissions.reserve(1 + number(7));
            for (std::size_t i = 0; i < n; ++i) {
                submissions.write(i, any_request());
            }
            if (n > 0) {
                submissions.commit(n);
            }
            slots += n;
            world_.step(2);
            world_.now += 10'000;
            if (one_in(2)) {
                completions.release(completions.peek(16));
                completions.publish();
            }
            // The other session's write succeeds, or it fails because the hostile session has broken the queue pair.
            if (world_.session().try_submit(SteppedWorld::write(1, *a_, *memory_->mr)) == Refusal::none) {
                std::vector<Completion> mine;
                // All retries to a peer QP take half a second, and the hostile session may have broken the peer QP.
                for (int i = 0; i < 10'000 && mine.empty(); ++i) {
                    world_.step();
                    world_.now += 100'000;
                    mine = world_.poll();
                }
                ASSERT_EQ(mine.size(), 1u) << describe(*a_) << describe(*b_);
                EXPECT_EQ(mine[0].tag, 1u);
                served += mine[0].ok();
            }
            replace_broken();
        }
        share_with({{0, 8, 8}});
        world_.proxy.remove_session(index);
        world_.ends[index].reset();
        (void)world_.proxy.take_unasked();  // takes the report that the session is broken
    }
    std::printf("%llu slots of %llu sessions; the other session was served %llu times\n",
                static_cast<unsigned long long>(slots), static_cast<unsigned long long>(hostile_sessions),
                static_cast<unsigned long long>(served));
    EXPECT_GT(slots, 1000u);
    EXPECT_GT(served, 100u);
}

}  // namespace
}  // namespace pollcore::testing
