// Tests errors between two queue pairs: on the wire, at the receiver, in a request.
#include <string>

#include "verbs_ends.hpp"

namespace mlx5_model {
namespace {

// Posts sends and atomics, each of which must happen once.
void add_and_send(Pair& pair, int rounds) {
    std::uint64_t& sum = pair.there.memory[100];
    for (int i = 0; i < rounds; ++i) {
        ASSERT_EQ(pair.there.post_receive(static_cast<std::uint64_t>(i), {pair.there.part(0, 8)}), 0);
        pair.here.memory[0] = static_cast<std::uint64_t>(i);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
        ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, {pair.here.part(8, 8)}, atomic_on(pair.there, 800, 1)),
                  0);
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_READ, 3, {pair.here.part(16, 8)}, to_memory(pair.there, 800)), 0);
        ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.there.received().wr_id, static_cast<std::uint64_t>(i));
        ASSERT_EQ(pair.there.memory[0], static_cast<std::uint64_t>(i));
        ASSERT_EQ(pair.here.memory[1], static_cast<std::uint64_t>(i)) << "what the atomic found";
        ASSERT_EQ(pair.here.memory[2], static_cast<std::uint64_t>(i) + 1) << "what the read saw";
        ASSERT_EQ(sum, static_cast<std::uint64_t>(i) + 1);
        ASSERT_FALSE(End::poll(pair.there.recv_cq));
    }
}

TEST(Loss, LostRequestsAreSentAgain) {
    Pair pair;
    mlx5_model_lose_requests(pair.here.number(), 5);
    add_and_send(pair, 4);
}

TEST(Loss, LostAnswersAreGivenAgainAndNothingHappensTwice) {
    Pair pair;
    add_and_send(pair, 1);
    for (int i = 0; i < 3; ++i) {
        mlx5_model_lose_answers(pair.here.number(), 1);
        pair.there.memory[100] = 10;
        ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, {pair.here.part(8, 8)}, atomic_on(pair.there, 800, 1)),
                  0);
        ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.there.memory[100], 11u);
        EXPECT_EQ(pair.here.memory[1], 10u);
    }
    pair.there.memory[100] = 0;
    mlx5_model_lose_answers(pair.here.number(), 6);
    add_and_send(pair, 4);
}

TEST(Loss, RepeatedRequestsHappenOnce) {
    Pair pair;
    mlx5_model_repeat_requests(pair.here.number(), 12);
    add_and_send(pair, 4);
}

TEST(Loss, ByChanceNothingIsLostOrHappensTwice) {
    Pair pair;
    mlx5_model_on_the_wire(100, 100, 100, 7);
    add_and_send(pair, 300);
    mlx5_model_on_the_wire(0, 0, 0, 1);
}

// After a refusal the responder is in error and could not repeat the answer.
TEST(Loss, ARefusalIsNotLost) {
    Pair pair;
    mlx5_model_lose_answers(pair.here.number(), 1);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, ibv_send_wr{}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_REM_ACCESS_ERR);
}

TEST(Loss, AfterItsRetriesASendGivesUp) {
    for (const std::uint8_t retries : {0, 1, 3, 7}) {
        Path path;
        path.retries = retries;
        {
            Pair pair({}, path);
            mlx5_model_lose_requests(pair.here.number(), retries);
            ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
            EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS) << "the last retry arrives";
        }
        Pair pair({}, path);
        mlx5_model_lose_requests(pair.here.number(), retries + 1u);
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 2, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
        ASSERT_EQ(pair.here.post_receive(3, {}), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_RETRY_EXC_ERR);
        const ibv_wc flushed = pair.here.sent();
        EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(flushed.wr_id, 2u);
        EXPECT_EQ(pair.here.received().status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(pair.here.state(), IBV_QPS_ERR);
        EXPECT_EQ(pair.there.state(), IBV_QPS_RTS) << "it has heard nothing";
    }
}

TEST(Loss, AnUnreliableConnectionDoesNotNotice) {
    Options options;
    options.type = IBV_QPT_UC;
    Pair pair(options);
    ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 8)}), 0);
    mlx5_model_lose_requests(pair.here.number(), 1);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_FALSE(End::poll(pair.there.recv_cq));
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
}

TEST(Loss, APeerThatIsGoneOrNotReadyIsSilent) {
    Path path;
    path.retries = 1;
    End here;
    {
        const End there;
        connect(here, there, path);
    }
    ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 8)}), 0);
    EXPECT_EQ(here.sent().status, IBV_WC_RETRY_EXC_ERR);

    const End one;
    const End other;
    ASSERT_EQ(one.init(), 0);
    ASSERT_EQ(other.init(), 0);
    ASSERT_EQ(one.ready_to_receive(other.gid(), other.number()), 0);
    ASSERT_EQ(one.ready_to_send(path), 0);
    ASSERT_EQ(one.post(IBV_WR_RDMA_WRITE, 1, {}, ibv_send_wr{}), 0);
    EXPECT_EQ(one.sent().status, IBV_WC_RETRY_EXC_ERR);
}

// ---- The receiver is not ready ----

TEST(NotReady, ASendWaitsForItsReceive) {
    Pair pair;
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    mlx5_model_step(1);
    EXPECT_FALSE(End::poll(pair.here.send_cq));
    ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
}

std::uint64_t counter(const End& end, const char* name) {
    char text[32] = {};
    const std::string path = std::string(end.context->device->ibdev_path) + "/ports/1/hw_counters/" + name;
    std::FILE* file = std::fopen(path.c_str(), "r");
    if (file == nullptr) {
        ADD_FAILURE() << path;
        return 0;
    }
    const bool read = std::fgets(text, sizeof text, file) != nullptr;
    std::fclose(file);
    return read ? std::stoull(text) : 0;
}

TEST(NotReady, ItGivesUpAfterItsRetriesAndEachIsCounted) {
    for (const std::uint8_t retries : {0, 1, 6}) {
        Path path;
        path.rnr_retries = retries;
        Pair pair({}, path);
        const std::uint64_t before = counter(pair.there, "out_of_buffer");
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_RNR_RETRY_EXC_ERR);
        EXPECT_EQ(counter(pair.there, "out_of_buffer") - before, retries + 1u);
        EXPECT_EQ(pair.there.state(), IBV_QPS_RTS);
    }
}

TEST(NotReady, SevenIsForEver) {
    Pair pair;
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    const std::uint64_t before = counter(pair.there, "rnr_nak_retry_err");
    while (counter(pair.there, "rnr_nak_retry_err") < before + 30) {
        mlx5_model_step(1);
    }
    EXPECT_FALSE(End::poll(pair.here.send_cq));
}

TEST(NotReady, AWriteWithImmediateWritesNothingBeforeItsReceive) {
    Pair pair;
    pair.here.write(0, "written");
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, {pair.here.part(0, 7)}, to_memory(pair.there, 0)), 0);
    mlx5_model_step(1);
    EXPECT_EQ(pair.there.bytes()[0], 0);
    ASSERT_EQ(pair.there.post_receive(1, {}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.text(0, 7), "written");
}

// ---- Requests that are refused ----

class Refused : public testing::Test {
protected:
    void expect_remote(ibv_wc_status status, int event) {
        EXPECT_EQ(pair.here.sent().status, status);
        EXPECT_EQ(pair.here.state(), IBV_QPS_ERR);
        EXPECT_EQ(pair.there.state(), IBV_QPS_ERR);
        const auto told = next_event(pair.there.context.get());
        if (event < 0) {
            EXPECT_FALSE(told);
        } else {
            ASSERT_TRUE(told);
            EXPECT_EQ(static_cast<int>(told->event_type), event);
            EXPECT_EQ(told->element.qp, pair.there.qp.get());
        }
        EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
    }
    void expect_local(ibv_wc_status status) {
        EXPECT_EQ(pair.here.sent().status, status);
        EXPECT_EQ(pair.here.state(), IBV_QPS_ERR);
        EXPECT_EQ(pair.there.state(), IBV_QPS_RTS);
        EXPECT_EQ(next_event_type(pair.here.context.get()), -1);
    }
    ibv_sge of_no_key(std::size_t offset, std::size_t length) {
        ibv_sge part = pair.here.part(offset, length);
        part.lkey += 0x100;
        return part;
    }
    Pair pair;
};

TEST_F(Refused, ALocalKey) {
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {of_no_key(0, 8)}), 0);
    expect_local(IBV_WC_LOC_PROT_ERR);
}
TEST_F(Refused, BytesBeyondTheRegion) {
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(End::kBytes - 4, 8)}), 0);
    expect_local(IBV_WC_LOC_PROT_ERR);
}
TEST_F(Refused, ABindOfBytesThatAreNotThere) {
    const Mw window(ibv_alloc_mw(pair.here.pd.get(), IBV_MW_TYPE_2));
    ibv_send_wr bind{};
    bind.bind_mw = {window.get(),
                    ibv_inc_rkey(window->rkey),
                    {pair.here.mr.get(), pair.here.at(0), End::kBytes + 1, IBV_ACCESS_REMOTE_READ}};
    if (pair.here.post(IBV_WR_BIND_MW, 1, {}, bind) == 0) {
        expect_local(IBV_WC_MW_BIND_ERR);
    }
}
TEST_F(Refused, ARemoteKey) {
    ibv_send_wr request = to_memory(pair.there, 0);
    request.wr.rdma.rkey += 1;
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, request), 0);
    expect_remote(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}
TEST_F(Refused, ReadsBeyondTheRegion) {
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_READ, 1, {pair.here.part(0, 8)}, to_memory(pair.there, End::kBytes - 7)), 0);
    expect_remote(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}
TEST_F(Refused, AnAtomicAtAnOddPlace) {
    ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {pair.here.part(0, 8)}, atomic_on(pair.there, 4, 1)), 0);
    expect_remote(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}
TEST_F(Refused, AMessageThatIsTooLong) {
    ASSERT_EQ(pair.there.post_receive(5, {pair.there.part(0, 7)}), 0);
    ASSERT_EQ(pair.there.post_receive(6, {pair.there.part(0, 7)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    expect_remote(IBV_WC_REM_INV_REQ_ERR, -1);
    const ibv_wc failed = pair.there.received();
    EXPECT_EQ(failed.status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(failed.wr_id, 5u);
    EXPECT_EQ(pair.there.received().status, IBV_WC_WR_FLUSH_ERR);
}
TEST_F(Refused, AReceiveOfAWrongKey) {
    ibv_sge part = pair.there.part(0, 100);
    part.lkey += 0x100;
    ASSERT_EQ(pair.there.post_receive(5, {part}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 50)}), 0);
    expect_remote(IBV_WC_REM_OP_ERR, -1);
    EXPECT_EQ(pair.there.received().status, IBV_WC_LOC_PROT_ERR);
}
TEST_F(Refused, AWindowThatIsNotThere) {
    ASSERT_EQ(pair.there.post_receive(5, {pair.there.part(0, 8)}), 0);
    ibv_send_wr request{};
    request.invalidate_rkey = 0x12345;
    ASSERT_EQ(pair.here.post(IBV_WR_SEND_WITH_INV, 1, {pair.here.part(0, 8)}, request), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS) << "the message was whole";
    EXPECT_EQ(pair.there.received().status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(pair.there.state(), IBV_QPS_ERR);
}

TEST(RefusedOperations, AreInvalidRequestsWhereTheQueuePairDoesNotPermitThem) {
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        Path path;
        path.access = 0;
        Pair pair({}, path);
        const ibv_send_wr request =
            opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? atomic_on(pair.there, 0, 1) : to_memory(pair.there, 0);
        ASSERT_EQ(pair.here.post(opcode, 1, {pair.here.part(0, 8)}, request), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(next_event_type(pair.there.context.get()), IBV_EVENT_QP_REQ_ERR);
    }
}

// ---- Each syndrome, as libmlx5 reads it ----

struct Syndrome {
    std::uint8_t syndrome;
    ibv_wc_status status;
};
constexpr Syndrome kSyndromes[] = {
    {MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, IBV_WC_LOC_LEN_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, IBV_WC_LOC_PROT_ERR},
    {MLX5_CQE_SYNDROME_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR},
    {MLX5_CQE_SYNDROME_MW_BIND_ERR, IBV_WC_MW_BIND_ERR},
    {MLX5_CQE_SYNDROME_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, IBV_WC_REM_INV_REQ_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_OP_ERR, IBV_WC_REM_OP_ERR},
    {MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR},
    {MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, IBV_WC_REM_ABORT_ERR},
    {0x77, IBV_WC_GENERAL_ERR},
};

TEST(Syndromes, OfSends) {
    for (const Syndrome& each : kSyndromes) {
        Pair pair;
        mlx5_model_fail_send(pair.here.number(), 1, each.syndrome, 0x5a);
        for (std::uint64_t i = 0; i < 3; ++i) {
            ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, i, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
        }
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        const ibv_wc failed = pair.here.sent();
        EXPECT_EQ(failed.status, each.status);
        EXPECT_EQ(failed.vendor_err, 0x5au);
        EXPECT_EQ(failed.wr_id, 1u);
        EXPECT_EQ(failed.qp_num, pair.here.number());
        EXPECT_EQ(pair.here.sent().status, IBV_WC_WR_FLUSH_ERR);
    }
}

TEST(Syndromes, OfReceives) {
    for (const Syndrome& each : kSyndromes) {
        Pair pair;
        mlx5_model_fail_receive(pair.there.number(), 0, each.syndrome, 0x5a);
        ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 8)}), 0);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_REM_OP_ERR);
        const ibv_wc failed = pair.there.received();
        EXPECT_EQ(failed.status, each.status);
        EXPECT_EQ(failed.vendor_err, 0x5au);
    }
}

// ---- The states ----

TEST(States, AnErrorIsLeftByReset) {
    Pair pair;
    mlx5_model_fail_send(pair.here.number(), 0, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_LOC_QP_OP_ERR);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 2, {pair.here.part(0, 8)}), 0);
    ASSERT_EQ(pair.here.post_receive(3, {}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_WR_FLUSH_ERR) << "what is posted afterwards, too";
    EXPECT_EQ(pair.here.received().status, IBV_WC_WR_FLUSH_ERR);
    ASSERT_EQ(pair.here.modify({}, IBV_QPS_RESET), 0);
    ASSERT_EQ(pair.there.modify({}, IBV_QPS_RESET), 0);
    connect(pair.here, pair.there);
    ASSERT_EQ(pair.there.post_receive(4, {pair.there.part(0, 8)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 5, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().wr_id, 5u);
    EXPECT_EQ(pair.there.received().wr_id, 4u);
}

TEST(States, AnErrorFlushesWhatIsPosted) {
    Pair pair;
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, i, {pair.here.part(0, 8)}), 0);
        ASSERT_EQ(pair.here.post_receive(i, {}), 0);
    }
    ASSERT_EQ(pair.here.modify({}, IBV_QPS_ERR), 0);
    for (std::uint64_t i = 0; i < 3; ++i) {
        for (const ibv_wc& flushed : {pair.here.sent(), pair.here.received()}) {
            EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
            EXPECT_EQ(flushed.wr_id, i);
        }
    }
}

TEST(States, AnUnreliableSenderStopsInSqeAndGoesOn) {
    Options options;
    options.type = IBV_QPT_UC;
    Pair pair(options);
    mlx5_model_fail_send(pair.here.number(), 0, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(pair.here.state(), IBV_QPS_SQE);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 2, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_WR_FLUSH_ERR);
    // The queue pair still receives.
    ASSERT_EQ(pair.here.post_receive(3, {pair.here.part(0, 8)}), 0);
    ASSERT_EQ(pair.there.post(IBV_WR_SEND, 4, {pair.there.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.received().status, IBV_WC_SUCCESS);
    ibv_qp_attr attributes{};
    attributes.cur_qp_state = IBV_QPS_SQE;
    ASSERT_EQ(pair.here.modify(attributes, IBV_QPS_RTS, IBV_QP_CUR_STATE), 0);
    ASSERT_EQ(pair.there.post_receive(5, {pair.there.part(0, 8)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 6, {pair.here.part(0, 8)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.received().wr_id, 5u);
}

TEST(States, SqdHoldsSendsBack) {
    Pair pair;
    ibv_qp_attr attributes{};
    attributes.en_sqd_async_notify = 1;
    ASSERT_EQ(pair.here.modify(attributes, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    EXPECT_EQ(next_event_type(pair.here.context.get()), IBV_EVENT_SQ_DRAINED);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    EXPECT_EQ(mlx5_model_step(10), 0);
    ASSERT_EQ(pair.here.modify({}, IBV_QPS_RTS), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.here.modify({}, IBV_QPS_SQD), 0);
    EXPECT_EQ(next_event_type(pair.here.context.get()), -1) << "nobody asked for the event";
}

}  // namespace
}  // namespace mlx5_model
