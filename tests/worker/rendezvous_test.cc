// Messages that are longer than the receiver's buffers (rendezvous): the sender announces such a message, and the
// receiver's worker reads it from the sender's memory. The worker is stepped by hand.
#include <array>
#include <cstring>
#include <numeric>

#include "credit_fixture.hpp"
#include "post_each.hpp"

namespace pollcore::testing {
namespace {

constexpr std::uint32_t kShort = 64;   // length of a receive in bytes
constexpr std::uint32_t kLong = 2048;  // length of a rendezvous buffer

class WorkerRendezvousTest : public WorkerCreditTest {
protected:
    WorkerRendezvousTest() { make_ends(); }

    void make_ends(bool worker_sleeps = false) {
        SteppedWorld::Options options;
        options.pool_buffers = 64;
        options.sleeps = worker_sleeps;
        make_world(std::move(options));
        receives = &world->add_pool(32, kShort, kReceiver);
        longs = &world->add_pool(2, kLong, kReceiver);
        for (std::size_t i = 0; i < source->memory.size(); ++i) {  // the bytes at different offsets differ
            *source->data(i) = static_cast<std::byte>(i * 7 + i / 256);
        }
        add_pairs(1, {.shares = {{kReceiver, 16, 0}}, .pool = {.pool = receives}, .rendezvous = {.pool = longs}});
        agree_by_pool();
    }
    void agree_by_pool() {
        submit(send(1));
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
        take_short(1);
        turn();
        ASSERT_EQ(world->session(kSender).message_max(from[0]->handle()), kShort);
        ASSERT_EQ(world->session(kSender).rendezvous_max(from[0]->handle()), kLong);
    }
    /// A message whose payload begins at offset `tag` of `source`. The request has an rkey, so that the peer may read
    /// the payload.
    [[nodiscard]] WorkRequest send_long(std::uint64_t tag, std::uint32_t length, std::uint8_t flags = kSignaled) const {
        WorkRequest request = send(tag, {.flags = flags, .length = length, .from = tag});
        request.rkey = source->rkey();
        return request;
    }
    void take_short(std::size_t n) {
        for (const Completion& completion : world->await(n, kReceiver)) {
            ASSERT_TRUE(completion.ok() && completion.pooled());
            ASSERT_EQ(completion.pool(), receives->handle());
            ASSERT_EQ(world->session(kReceiver).release(completion), Refusal::none);
        }
    }
    void expect_long(const Completion& completion, std::uint64_t tag, std::uint32_t length) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.opcode, CompletionOpcode::recv);
        ASSERT_TRUE(completion.pooled());
        ASSERT_EQ(completion.pool(), longs->handle());
        EXPECT_EQ(completion.byte_len, length);
        EXPECT_EQ(std::memcmp(longs->buffer(completion.buffer()), source->data(tag), length), 0);
    }
    void release(const Completion& completion) {
        ASSERT_EQ(world->session(kReceiver).release(completion), Refusal::none);
    }
    // Checks that each buffer is either free, posted or held.
    void expect_whole(const SteppedWorld::Pool& pool) {
        const ReceivePoolCounters& counters = pool.counters();
        EXPECT_EQ(pool.buffers->free() + counters.posted.value() + counters.held.value(), pool.buffers->size());
    }
    void expect_nothing_left() {
        EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
        EXPECT_EQ(world->ends[kReceiver]->worker_end->pooled_posted(),
                  receives->counters().posted.value() + longs->counters().posted.value());
        EXPECT_EQ(longs->counters().posted.value(), 0u);
        expect_whole(*receives);
        expect_whole(*longs);
    }

    SteppedWorld::Pool* receives = nullptr;
    SteppedWorld::Pool* longs = nullptr;
};

TEST_F(WorkerRendezvousTest, ALongMessageComesInItsPlaceAndWhole) {
    for (std::uint64_t i = 0; i < 100; ++i) {
        const auto length = static_cast<std::uint32_t>(kShort + 1 + i * 397 % (kLong - kShort));
        submit(send(1000 + i));
        WorkRequest message = send_long(i, length);
        if (i % 2 == 1) {
            message.opcode = Opcode::send_with_imm;
            message.imm_data = static_cast<std::uint32_t>(i);
        }
        submit(message);
        submit(send(2000 + i));
        const auto received = world->await(3, kReceiver);
        ASSERT_EQ(received.size(), 3u) << i;
        EXPECT_EQ(received[0].pool(), receives->handle());
        expect_long(received[1], i, length);
        EXPECT_EQ(received[1].flags & kWithImm, i % 2 == 1 ? kWithImm : 0);
        EXPECT_EQ(received[1].imm_data, i % 2 == 1 ? i : 0);
        EXPECT_EQ(received[2].pool(), receives->handle());
        for (const Completion& completion : received) {
            release(completion);
        }
        const auto ended = world->await(3, kSender);
        ASSERT_EQ(ended.size(), 3u);
        EXPECT_EQ(ended[0].tag, 1000 + i);
        EXPECT_EQ(ended[1].tag, i);
        EXPECT_EQ(ended[1].status, Status::success);
        EXPECT_EQ(ended[1].opcode, CompletionOpcode::send);
        EXPECT_EQ(ended[2].tag, 2000 + i);
    }
    turn();
    EXPECT_EQ(world->worker.counters().rendezvous.value(), 100u);
    EXPECT_EQ(longs->counters().delivered.value(), 100u);
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    expect_nothing_left();
}

TEST_F(WorkerRendezvousTest, WhatIsBehindALongMessageWaitsUntilThereIsABufferForIt) {
    std::vector<Completion> held;
    for (std::uint64_t i = 0; i < 2; ++i) {
        submit(send_long(i, 500));
        held.push_back(world->await(1, kReceiver).at(0));
        ASSERT_EQ(world->await(1, kSender).at(0).tag, i);
    }
    submit(send_long(2, 700, 0));  // unsignaled
    submit(send(3));
    submit(write(4));
    turn(200);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    EXPECT_TRUE(world->poll(kSender).empty());
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 3u);
    release(held[1]);
    const auto received = world->await(2, kReceiver);
    ASSERT_EQ(received.size(), 2u);
    expect_long(received[0], 2, 700);
    EXPECT_EQ(received[1].pool(), receives->handle());
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 3u);
    EXPECT_EQ(ended[1].tag, 4u);
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
    release(held[0]);
    release(received[0]);
    release(received[1]);
    turn();
    expect_nothing_left();
}

TEST_F(WorkerRendezvousTest, WhatThePeerCannotReadIsRefused) {
    EXPECT_EQ(try_submit(send_long(0, kLong + 1)), Refusal::message_too_long);
    WorkRequest message = send_long(0, kShort + 1);
    message.rkey = 0;
    EXPECT_EQ(try_submit(message), Refusal::message_too_long);
    message = send_long(0, kShort + 1);
    message.opcode = Opcode::send_with_inv;
    EXPECT_EQ(try_submit(message), Refusal::message_too_long);
    const std::array<Sge, 2> two{source->sge(60, 0), source->sge(60, 60)};
    EXPECT_EQ(world->session(kSender).try_submit(send_long(0, 0), two), Refusal::message_too_long);
    submit(send_long(0, kLong));
    ASSERT_EQ(world->await(1, kSender).size(), 1u);
    expect_long(world->await(1, kReceiver).at(0), 0, kLong);
}

// Until the peer's terms are known, the session accepts all messages. After the terms have come, the worker handles
// each waiting message as the terms say.
TEST_F(WorkerRendezvousTest, WhatWaitedForThePeersTermsGoesAsTheySay) {
    ASSERT_TRUE(world->reset(*from[0]));
    ASSERT_TRUE(world->reset(*to[0]));
    (void)world->poll(kReceiver);
    connect(*from[0], *to[0], kNoRetries, kNoRetries);
    WorkRequest unreadable = send_long(1, kLong);
    unreadable.rkey = 0;
    submit(send_long(0, kLong));
    submit(unreadable);
    submit(send_long(2, kLong + 1));
    submit(send_long(3, kShort));
    auto received = world->await(2, kReceiver);
    // Drops the final completion of the queue pair before its reset.
    std::erase_if(received, [](const Completion& completion) { return !completion.ok(); });
    ASSERT_EQ(received.size(), 2u);
    expect_long(received[0], 0, kLong);
    EXPECT_EQ(received[1].byte_len, kShort);
    const auto ended = world->await(4, kSender);
    ASSERT_EQ(ended.size(), 4u);
    for (const Completion& completion : ended) {
        EXPECT_EQ(completion.status, completion.tag % 3 == 0 ? Status::success : Status::message_too_long)
            << completion.tag;
    }
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
}

TEST_F(WorkerRendezvousTest, MemoryThatThePeerMayNotReadEndsTheConnection) {
    const Buffer& secret = buffer(4096, 0);
    WorkRequest message = send_long(5, 1000);
    message.sge = secret.sge(1000);
    message.rkey = secret.rkey();
    submit(message);
    submit(send(6));
    turn();
    EXPECT_EQ(world->session(kReceiver).cause(to[0]->handle()), Status::rem_access_err);
    world->to_error(*from[0]);
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 5u);
    EXPECT_EQ(ended[0].status, Status::wr_flush_err);
    EXPECT_EQ(ended[1].tag, 6u);
    for (const Completion& completion : world->poll(kReceiver)) {
        EXPECT_FALSE(completion.ok());
        release(completion);
    }
    EXPECT_TRUE(world->close(*to[0]));
    turn();
    expect_nothing_left();
}

// One end is reset while a message is announced, waits for a buffer or is being read. Then the other end is reset, and
// both ends begin again.
TEST_F(WorkerRendezvousTest, WhateverIsOpenEndsWithTheConnectionAndTheNextOneBegins) {
    for (int life = 0; life < 60; ++life) {
        std::vector<Completion> held;
        if (life % 4 == 0) {
            for (std::uint64_t i = 0; i < 2; ++i) {
                submit(send_long(i, 500));
                held.push_back(world->await(1, kReceiver).at(0));
                ASSERT_EQ(world->await(1, kSender).at(0).tag, i);
            }
        }
        for (std::uint64_t i = 0; i < 4; ++i) {
            submit(send_long(10 + i, 900, signaled_if(i % 2 == 0)));
        }
        turn(life / 4);
        SteppedWorld::Qp& first = life % 2 == 0 ? *from[0] : *to[0];
        SteppedWorld::Qp& second = life % 2 == 0 ? *to[0] : *from[0];
        EXPECT_TRUE(world->reset(first));
        EXPECT_TRUE(world->reset(second));
        turn();
        std::uint64_t next = 10;
        for (const Completion& completion : world->poll(kSender)) {
            ASSERT_GE(completion.tag, next) << "out of order";
            next = completion.tag + 1;
        }
        EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u) << life;
        for (const Completion& completion : world->poll(kReceiver)) {
            release(completion);
        }
        for (const Completion& completion : held) {
            expect_long(completion, completion.buffer() == held[0].buffer() ? 0 : 1, 500);
            release(completion);
        }
        turn();
        EXPECT_EQ(longs->counters().posted.value(), 0u);
        EXPECT_EQ(longs->counters().held.value(), 0u);
        connect(*from[0], *to[0], kNoRetries, kNoRetries);
        turn();
        for (const Completion& completion : world->poll(kReceiver)) {
            release(completion);
        }
        agree_by_pool();
    }
    turn();
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    expect_nothing_left();
}

// Announcements that a faulty or hostile peer may send.
TEST_F(WorkerRendezvousTest, AnnouncementsThatCannotBeEndTheConnection) {
    const auto announce = [&](const Announcement& what) {
        Announcement::Words words = what.pack();
        ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(words.data()), .length = sizeof(words), .lkey = 0};
        ibv_send_wr wr{};
        wr.wr_id = 1;  // this number belongs to no request, so the worker drops the completion
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.send_flags = IBV_SEND_INLINE;
        wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(to[0]->block) + ControlBlock::kAnnouncement;
        wr.wr.rdma.rkey = to[0]->block_rkey;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(from[0]->qp.get(), &wr, &bad), 0);
    };
    for (int kind = 0; kind < 2; ++kind) {
        make_ends();
        Announcement what{.addr = source->addr(), .rkey = source->rkey(), .length = 100, .number = 2};
        std::vector<Completion> held;
        if (kind == 0) {
            what.length = kLong + 1;
        } else {
            for (std::uint64_t i = 0; i < 2; ++i) {  // these messages take all buffers, so the next one must wait
                submit(send_long(i, 500));
                held.push_back(world->await(1, kReceiver).at(0));
                ASSERT_EQ(world->await(1, kSender).size(), 1u);
            }
            what.number = 4;
            announce(what);
            turn();
            ASSERT_TRUE(receiver().rendezvous().waits_for_buffer());
            what.number = 5;
        }
        announce(what);
        turn();
        EXPECT_EQ(world->session(kReceiver).cause(to[0]->handle()), Status::flow_violation) << kind;
        EXPECT_EQ(world->worker.counters().flow_faults.value(), 1u);
        const auto said = world->proxy.take_unasked();
        ASSERT_EQ(said.size(), 1u);
        EXPECT_EQ(said[0].object_id & 0xff, static_cast<std::uint32_t>(FlowFault::bad_announcement));
        EXPECT_TRUE(world->close(*to[0]));
        turn();
        for (const Completion& completion : world->poll(kReceiver)) {
            release(completion);
        }
        for (const Completion& completion : held) {
            release(completion);
        }
        turn();
        expect_nothing_left();
    }
}

TEST_F(WorkerRendezvousTest, AWriteWithImmediateOfTheApplicationsIsNoAnnouncement) {
    submit(send_long(0, 300));
    expect_long(world->await(1, kReceiver).at(0), 0, 300);
    WorkRequest with_imm = request(Opcode::rdma_write_with_imm, 7);
    with_imm.imm_data = 99;
    submit(with_imm);
    const auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].opcode, CompletionOpcode::recv_rdma_with_imm);
    EXPECT_EQ(received[0].imm_data, 99u);
    EXPECT_EQ(received[0].pool(), receives->handle());
}

int (*provider_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

TEST_F(WorkerRendezvousTest, AProviderThatRefusesTheAnnouncementRefusesThatMessageOnly) {
    ibv_context_ops& ops = world->device->context()->ops;
    provider_post = ops.post_send;
    ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
        return post_each(provider_post, qp, wr, bad,
                         [](const ibv_send_wr& one) { return one.opcode == IBV_WR_RDMA_WRITE_WITH_IMM; });
    };
    submit(send_long(1, 300));
    submit(send(2));
    const auto ended = world->await(2, kSender);
    ops.post_send = provider_post;
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 1u);
    EXPECT_EQ(ended[0].status, Status::post_refused);
    EXPECT_EQ(ended[1].status, Status::success);
    take_short(1);
    submit(send_long(3, 300));
    expect_long(world->await(1, kReceiver).at(0), 3, 300);
}

TEST_F(WorkerRendezvousTest, AProviderThatRefusesTheReadEndsTheConnection) {
    ibv_context_ops& ops = world->device->context()->ops;
    provider_post = ops.post_send;
    ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
        return post_each(provider_post, qp, wr, bad,
                         [](const ibv_send_wr& one) { return one.opcode == IBV_WR_RDMA_READ; });
    };
    submit(send_long(1, 300));
    turn();
    ops.post_send = provider_post;
    EXPECT_EQ(world->session(kReceiver).cause(to[0]->handle()), Status::post_refused);
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u) << "it was none of the peer's";
    world->to_error(*from[0]);
    const auto ended = world->await(1, kSender);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_FALSE(ended[0].ok());
    world->to_error(*to[0], QpState::error);
    EXPECT_TRUE(world->close(*to[0]));
    for (const Completion& completion : world->poll(kReceiver)) {
        release(completion);
    }
    turn();
    expect_nothing_left();
}

int (*provider_poll)(ibv_cq*, int, ibv_wc*) = nullptr;
std::vector<ibv_wc> held_back;
ibv_wc_opcode to_lose{};

int hold_back(ibv_cq* cq, int n, ibv_wc* wc) {
    held_back.insert(held_back.end(), wc, wc + std::max(provider_poll(cq, n, wc), 0));
    return 0;
}
int give_back(ibv_cq* cq, int n, ibv_wc* wc) {
    if (held_back.empty()) {
        return provider_poll(cq, n, wc);
    }
    *wc = held_back.front();
    held_back.erase(held_back.begin());
    return 1;
}

// When the announcement's completion is polled, it is a success, but the queue pair is already in error.
TEST_F(WorkerRendezvousTest, AnAnnouncementThatArrivesAfterAnErrorEndsBeforeWhatWaitedBehindIt) {
    ibv_context_ops& ops = world->device->context()->ops;
    provider_poll = ops.poll_cq;
    held_back.clear();
    ops.poll_cq = &hold_back;
    for (std::uint64_t i = 0; i < 4; ++i) {
        submit(send_long(i, 300));
    }
    turn();
    ASSERT_TRUE(sender().rendezvous().open());
    submit(send(4));
    turn();
    world->to_error(*from[0]);
    ASSERT_EQ(world->session(kSender).state(from[0]->handle()), QpState::error);
    ASSERT_FALSE(held_back.empty());
    ops.poll_cq = &give_back;
    const auto ended = world->await(5, kSender);
    ops.poll_cq = provider_poll;
    ASSERT_EQ(ended.size(), 5u);
    for (std::uint64_t i = 0; i < 5; ++i) {
        EXPECT_EQ(ended[i].tag, i);
        EXPECT_EQ(ended[i].status, Status::wr_flush_err);
    }
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
}

// The provider loses the completion of an announcement or of a read, so the counts of the two ends no longer agree.
TEST_F(WorkerRendezvousTest, ALostCompletionEndsTheConnection) {
    for (const ibv_wc_opcode lost : {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ}) {
        make_ends();
        ibv_context_ops& ops = world->device->context()->ops;
        provider_poll = ops.poll_cq;
        to_lose = lost;
        ops.poll_cq = [](ibv_cq* cq, int n, ibv_wc* wc) {
            int kept = 0;
            const int polled = provider_poll(cq, n, wc);
            for (int i = 0; i < polled; ++i) {
                if (wc[i].opcode == to_lose && !SrqWrId::names(wc[i].wr_id) && !WrId::unpack(wc[i].wr_id).recv) {
                    continue;
                }
                wc[kept++] = wc[i];
            }
            return kept;
        };
        submit(send_long(1, 300));
        turn();
        const bool announcement = lost == IBV_WC_RDMA_WRITE;
        ops.poll_cq = provider_poll;
        if (announcement) {
            // This end posts receives, and the worker grants them to the peer by a write. The completion of this write
            // shows that the announcement's completion is missing.
            for (std::uint64_t i = 0; i < 4 && world->session(kSender).state(from[0]->handle()) == QpState::ready;
                 ++i) {
                submit(recv(50 + i, {.qp = from[0]}), kSender);
                turn();
            }
            EXPECT_EQ(world->session(kSender).cause(from[0]->handle()), Status::general_err);
            const auto said = world->proxy.take_unasked();
            ASSERT_EQ(said.size(), 1u);
            EXPECT_EQ(said[0].object_id & 0xff, static_cast<std::uint32_t>(FlowFault::completion_lost));
        }
        SteppedWorld::Qp& end = announcement ? *from[0] : *to[0];
        EXPECT_TRUE(world->close(end));
        turn();
        if (!announcement) {
            EXPECT_TRUE(world->close(*from[0]));
        }
        auto ended = world->poll(kSender);
        std::erase_if(ended, [](const Completion& completion) { return completion.from_recv_queue(); });
        ASSERT_EQ(ended.size(), 1u);
        EXPECT_FALSE(ended[0].ok());
        for (const Completion& completion : world->poll(kReceiver)) {
            release(completion);
        }
        if (announcement) {
            EXPECT_TRUE(world->close(*to[0]));
        }
        for (const Completion& completion : world->poll(kReceiver)) {
            release(completion);
        }
        turn();
        expect_nothing_left();
    }
}

// When an end fails on its own, the peer can still read that end's memory until the failed end's QP is in ERR at its
// device. Until then the announced bytes do not belong to the application.
TEST_F(WorkerRendezvousTest, WhatThePeerMayStillReadEndsWithTheDevice) {
    for (std::uint64_t i = 0; i < 2; ++i) {  // the application releases no buffer, so the peer has none left
        submit(send_long(i, 300));
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    for (std::uint64_t i = 2; i < 5; ++i) {
        submit(send_long(i, 300));
    }
    turn();
    ibv_context_ops& ops = world->device->context()->ops;
    provider_poll = ops.poll_cq;
    ops.poll_cq = [](ibv_cq*, int, ibv_wc*) { return -1; };
    world->step();
    ops.poll_cq = provider_poll;
    EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::error);
    turn();
    EXPECT_TRUE(world->poll(kSender).empty());
    (void)world->close(*from[0]);
    const auto ended = world->poll(kSender);
    ASSERT_EQ(ended.size(), 3u);
    for (std::uint64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(ended[i].tag, i + 2);
        EXPECT_FALSE(ended[i].ok());
    }
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
}

// The device leaves a closed queue pair in RTS. Until the QP is destroyed, the peer can still read the announced bytes.
TEST_F(WorkerRendezvousTest, WhatThePeerMayStillReadOutlastsAClosingThatTheDeviceDoesNotFollow) {
    for (std::uint64_t i = 0; i < 2; ++i) {  // the application releases no buffer, so the peer has none left
        submit(send_long(i, 300));
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    submit(send_long(2, 300));
    turn();
    const QpHandle handle = from[0]->handle();
    const std::uint64_t command = world->proxy.begin_retiring(handle, world->now + 20'000, 0, true);
    std::optional<bool> drained;
    for (int i = 0; i < 100 && !drained; ++i) {
        turn(1);
        drained = world->proxy.retired(command);
    }
    EXPECT_TRUE(drained.has_value());
    EXPECT_TRUE(world->poll(kSender).empty());
    world->proxy.park(handle);
    ASSERT_EQ(world->device->destroy(from[0]->qp.get()), 0);
    (void)from[0]->qp.release();
    world->proxy.forget(handle);
    const auto ended = world->poll(kSender);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].tag, 2u);
    EXPECT_FALSE(ended[0].ok());
}

// An announced region stays in use until the peer has read it, even if the send queue is empty.
TEST_F(WorkerRendezvousTest, AnAnnouncedRegionIsInUseUntilItWasRead) {
    std::vector<Completion> held;
    for (std::uint64_t i = 0; i < 2; ++i) {
        submit(send_long(i, 500));
        held.push_back(world->await(1, kReceiver).at(0));
        ASSERT_EQ(world->await(1, kSender).at(0).tag, i);
    }
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey(), {}));
    submit(send_long(2, 500));
    turn();
    EXPECT_TRUE(sender().rendezvous().arrived());
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey(), {}));
    release(held[0]);
    expect_long(world->await(1, kReceiver).at(0), 2, 500);
    ASSERT_EQ(world->await(1, kSender).at(0).tag, 2u);
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey(), {}));
}

TEST_F(WorkerRendezvousTest, ReceivesOfASharedReceiveQueueDoAsWell) {
    make_world({.pool_buffers = 64});
    receives = &world->add_pool(32, kShort, kReceiver);
    longs = &world->add_pool(4, kLong, kReceiver);
    SteppedWorld::Srq& srq =
        world->add_srq({.session = kReceiver, .depth = 16, .pool = receives, .credit_connections = 2});
    add_pairs(2, {.shares = {{kReceiver, 16, 0}}, .srq = &srq, .rendezvous = {.pool = longs}});
    for (std::uint64_t i = 0; i < 200; ++i) {
        WorkRequest message = i % 3 == 0 ? send(i) : send_long(i, 1000);
        message.qp = from[i % 2]->handle();
        submit(message);
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u) << i;
        EXPECT_EQ(received[0].qp, to[i % 2]->handle());
        EXPECT_EQ(received[0].pool(), i % 3 == 0 ? receives->handle() : longs->handle());
        if (i % 3 != 0) {
            EXPECT_EQ(std::memcmp(longs->buffer(received[0].buffer()), source->data(i), 1000), 0);
        }
        release(received[0]);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    turn();
    expect_nothing_left();
}

// A sleeping worker learns of the peer's read by an event, or by looking at memory from time to time.
TEST_F(WorkerRendezvousTest, AWorkerThatSleepsSeesThatThePeerHasRead) {
    make_ends(true);
    submit(send_long(3, 500));
    std::vector<Completion> ended;
    for (int turns = 0; turns < 100 && ended.empty(); ++turns) {
        if (world->worker.fall_asleep(world->now)) {
            EXPECT_EQ(world->worker.look_every_ns(), 50'000u);
            ASSERT_TRUE(world->worker.woken(false, world->now)) << "after " << turns << " steps";
            world->worker.wake_up(world->now);
        }
        world->step();
        ended = world->poll(kSender);
    }
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_TRUE(ended[0].ok());
}

int (*real_poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
const ibv_cq* held_cq = nullptr;

int holding_poll_cq(ibv_cq* cq, int n, ibv_wc* wc) {
    return cq == held_cq ? 0 : real_poll_cq(cq, n, wc);
}

// The read completed before the error, but its completion is polled late.
TEST_F(WorkerRendezvousTest, TheEndOfThePoolIsToldBehindTheMessageThatIsBeingRead) {
    make_world({.pool_buffers = 64});
    world->add_cq();
    receives = &world->add_pool(32, kShort, kReceiver);
    longs = &world->add_pool(2, kLong, kReceiver);
    add_pairs(
        1, {.shares = {{kReceiver, 16, 0}}, .send_cq = 1, .pool = {.pool = receives}, .rendezvous = {.pool = longs}});
    agree_by_pool();
    ibv_context_ops& ops = world->device->context()->ops;
    real_poll_cq = std::exchange(ops.poll_cq, &holding_poll_cq);
    held_cq = world->cq(1).options().cq;
    submit(send_long(3, 500));
    turn();
    ASSERT_EQ(longs->counters().posted.value(), 1u);
    world->to_error(*to[0]);
    turn();
    EXPECT_EQ(receives->counters().posted.value(), 0u) << "all are flushed";
    EXPECT_TRUE(world->poll(kReceiver).empty());
    held_cq = nullptr;
    turn();
    const auto received = world->poll(kReceiver);
    ASSERT_EQ(received.size(), 2u);
    expect_long(received[0], 3, 500);
    EXPECT_EQ(received[1].pool(), receives->handle());
    EXPECT_FALSE(received[1].ok());
}

}  // namespace
}  // namespace pollcore::testing
