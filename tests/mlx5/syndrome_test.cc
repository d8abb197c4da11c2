// Tests each error that the HCA can report for a request, and the completion that libmlx5 and the runtime make from the
// error.
#include <algorithm>
#include <atomic>
#include <span>

#include "mlx5_fixture.hpp"

namespace pollcore::testing {
namespace {

struct Syndrome {
    std::uint8_t of_device;
    Status told;
};
constexpr Syndrome kSyndromes[] = {
    {MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, Status::loc_len_err},
    {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, Status::loc_qp_op_err},
    {MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, Status::loc_prot_err},
    {MLX5_CQE_SYNDROME_WR_FLUSH_ERR, Status::wr_flush_err},
    {MLX5_CQE_SYNDROME_MW_BIND_ERR, Status::mw_bind_err},
    {MLX5_CQE_SYNDROME_BAD_RESP_ERR, Status::bad_resp_err},
    {MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, Status::loc_access_err},
    {MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, Status::rem_inv_req_err},
    {MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, Status::rem_access_err},
    {MLX5_CQE_SYNDROME_REMOTE_OP_ERR, Status::rem_op_err},
    {MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, Status::retry_exc_err},
    {MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, Status::rnr_retry_exc_err},
    {MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, Status::rem_abort_err},
    {0x7f, Status::general_err},  // unknown to libmlx5
    {0, Status::general_err},
};

constexpr std::uint32_t kBurst = 8;
constexpr std::uint32_t kPlaces[] = {0, kBurst / 2, kBurst - 1};
constexpr PathAttributes kPatient{.rnr_retry = 7, .min_rnr_timer = 1};

class Syndromes : public OnMlx5 {
protected:
    /// Runs the test with each syndrome at the first, a middle and the last request of a burst.
    template <class Test>
    void each_everywhere(Test test) {
        for (const std::uint32_t place : kPlaces) {
            for (const Syndrome& syndrome : kSyndromes) {
                at(syndrome, place, test);
            }
        }
    }
    /// Runs the test with each syndrome at one of kPlaces, in turn.
    template <class Test>
    void each(Test test) {
        std::size_t turn = 0;
        for (const Syndrome& syndrome : kSyndromes) {
            at(syndrome, kPlaces[turn++ % std::size(kPlaces)], test);
        }
    }
    template <class Test>
    void at(const Syndrome& syndrome, std::uint32_t place, Test& test) {
        SCOPED_TRACE(std::string(status_name(syndrome.told)) + " of syndrome " + std::to_string(syndrome.of_device) +
                     " at " + std::to_string(place));
        if (!HasFailure()) {
            test(syndrome, place);
        }
    }
    static void expect_failed(const Completion& completion, std::uint64_t tag, Status status, bool recv) {
        EXPECT_EQ(completion.tag, tag);
        EXPECT_EQ(completion.status, status);
        EXPECT_EQ(completion.from_recv_queue(), recv);
        EXPECT_EQ(completion.byte_len, 0u);
        EXPECT_EQ(completion.flags & ~(kFromRecvQueue | kByRuntime), 0);
    }
    static void expect_failed_by_device(const Completion& completion, std::uint64_t tag, Status status, bool recv) {
        expect_failed(completion, tag, status, recv);
        EXPECT_EQ(completion.flags & kByRuntime, 0);
        EXPECT_EQ(completion.vendor_err, std::uint32_t{kVendor});
    }

    /// Submits `burst` to a, with tags from 0; the request at `place` fails. Expects, in order, the completions of the
    /// signaled requests before that request, of the request itself, and of all later requests. Returns the completions
    /// of b's receives.
    std::vector<Completion> expect_burst_ends_at(std::uint32_t place, std::span<const WorkRequest> burst,
                                                 const Syndrome& syndrome, std::size_t receives = 0) {
        const SessionFigures before = session.figures();
        Model::fail_send(a.qp_num(), place, syndrome.of_device, kVendor);
        submit(burst);
        std::vector<std::uint64_t> tags;
        for (std::uint64_t tag = 0; tag < burst.size(); ++tag) {
            if (tag >= place || (burst[tag].flags & kSignaled) != 0) {
                tags.push_back(tag);
            }
        }
        const auto all = await(tags.size() + receives);
        const auto sent = of(all, a.handle(), false);
        EXPECT_EQ(sent.size(), tags.size());
        if (HasFailure()) {
            return {};
        }
        for (std::size_t i = 0; i < sent.size(); ++i) {
            if (tags[i] < place) {
                EXPECT_EQ(sent[i].tag, tags[i]);
                EXPECT_EQ(sent[i].status, Status::success);
            } else if (tags[i] == place) {
                expect_failed_by_device(sent[i], place, syndrome.told, false);
            } else {
                expect_failed(sent[i], tags[i], Status::wr_flush_err, false);
            }
            EXPECT_EQ(sent[i].opcode, verbs_opcode(burst[tags[i]].opcode));
        }
        EXPECT_EQ(session.cause(a.handle()), syndrome.told);
        EXPECT_EQ(session.state(a.handle()), QpState::error);
        EXPECT_EQ(session.try_submit(burst[0]), Refusal::qp_in_error);
        const SessionFigures after = session.figures();
        EXPECT_EQ(after.accepted - before.accepted, burst.size());
        EXPECT_EQ(after.completed - before.completed, all.size());
        EXPECT_EQ(after.retired - before.retired, burst.size() - tags.size());
        return of(all, b.handle(), true);
    }
    static CompletionOpcode verbs_opcode(Opcode opcode) {
        switch (opcode) {
            case Opcode::rdma_write: return CompletionOpcode::rdma_write;
            case Opcode::rdma_read: return CompletionOpcode::rdma_read;
            case Opcode::atomic_cmp_and_swp: return CompletionOpcode::comp_swap;
            case Opcode::atomic_fetch_and_add: return CompletionOpcode::fetch_add;
            default: return CompletionOpcode::send;
        }
    }
    [[nodiscard]] static std::uint8_t signaled_one_in_three(std::uint64_t tag) {
        return tag % 3 == 1 ? std::uint8_t{kSignaled} : std::uint8_t{0};
    }
    [[nodiscard]] std::vector<WorkRequest> burst_of(std::initializer_list<Opcode> opcodes) const {
        std::vector<WorkRequest> burst;
        for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
            burst.push_back(rdma(opcodes.begin()[tag % opcodes.size()], tag, 8, signaled_one_in_three(tag)));
        }
        return burst;
    }
    [[nodiscard]] std::vector<WorkRequest> sends() const {
        std::vector<WorkRequest> all;
        for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
            all.push_back(send(tag, 8));
        }
        return all;
    }
    /// If `answered` is true, the sender has learned that its peer failed.
    static void expect_sent(const std::vector<Completion>& sent, std::uint32_t place, bool answered) {
        ASSERT_EQ(sent.size(), kBurst);
        for (std::uint32_t i = 0; i < kBurst; ++i) {
            EXPECT_EQ(sent[i].tag, i);
            EXPECT_EQ(sent[i].status, i < place || !answered ? Status::success
                                      : i == place           ? Status::rem_op_err
                                                             : Status::wr_flush_err);
        }
    }
    /// Submits unsignaled requests to b and returns when the device has carried them out. They have no completion.
    void write_unsignaled() {
        local.data()[0] = static_cast<std::byte>(++mark_);
        for (std::uint64_t tag = 300; tag < 303; ++tag) {
            submit(on(b, rdma(Opcode::rdma_write, tag, 8, 0)));
        }
        WorkRequest last = on(b, rdma(Opcode::rdma_write, 303, 1, 0));
        last.remote_addr = remote.addr() + kBytes - 1;
        submit(last);
        // Acquire, because the device writes this byte.
        until([&] {
            return std::atomic_ref(remote.data()[kBytes - 1]).load(std::memory_order_acquire) == local.data()[0];
        });
    }
    void expect_receives_end_at(std::uint32_t place, const Syndrome& syndrome, bool answered) {
        write_unsignaled();
        Model::fail_receive(b.qp_num(), place, syndrome.of_device, kVendor);
        const std::uint64_t retired = session.figures().retired;
        submit_receives(b, 100, kBurst);
        submit(sends());
        const auto all = await(2 * kBurst);
        expect_sent(of(all, a.handle(), false), place, answered);
        const auto received = of(all, b.handle(), true);
        ASSERT_EQ(received.size(), kBurst);
        for (std::uint32_t i = 0; i < kBurst; ++i) {
            if (i < place) {
                EXPECT_EQ(received[i].tag, 100 + i);
                EXPECT_EQ(received[i].status, Status::success);
            } else if (i == place) {
                expect_failed_by_device(received[i], 100 + i, syndrome.told, true);
            } else {
                expect_failed(received[i], 100 + i, Status::wr_flush_err, true);
            }
        }
        EXPECT_EQ(session.cause(b.handle()), syndrome.told);
        EXPECT_EQ(session.state(b.handle()), QpState::error);
        until([&] { return session.figures().retired == retired + 4; });
    }
    void submit_receives(const QueuePair& to, std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t i = 0; i < count; ++i) {
            submit(on(to, recv(first + i, 64)));
        }
    }

private:
    std::uint8_t mark_ = 0;
};

// ---- Sends ----

TEST_F(Syndromes, OfASendEndItsConnectionAndNoOther) {
    each_everywhere([&](const Syndrome& syndrome, std::uint32_t place) {
        connect_two_pairs(shape());
        expect_burst_ends_at(place, burst_of({Opcode::rdma_write, Opcode::rdma_read, Opcode::atomic_fetch_and_add}),
                             syndrome);
        expect_message(c, d);
        expect_everything_accounted();
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
        expect_acknowledged();
    });
}

TEST_F(Syndromes, OfASendLeaveTheMessagesBeforeItWhereTheyArrived) {
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        connect_two_pairs(shape());
        submit_receives(b, 100, kBurst);
        const auto received = expect_burst_ends_at(place, burst_of({Opcode::send}), syndrome, place);
        for (std::size_t i = 0; i < received.size(); ++i) {
            EXPECT_EQ(received[i].tag, 100 + i);
            EXPECT_EQ(received[i].status, Status::success);
        }
        EXPECT_EQ(session.state(b.handle()), QpState::ready) << "nobody told it";
        EXPECT_TRUE(b.close());
        EXPECT_EQ(await(kBurst - place).size(), kBurst - place);
        expect_message(c, d);
        expect_everything_accounted();
    });
}

TEST_F(Syndromes, OfASendEndAnUnreliableConnection) {
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        connect_two_pairs(shape_of(QpType::uc));
        submit(on(a, recv(100, 64)));
        expect_burst_ends_at(place, burst_of({Opcode::rdma_write}), syndrome);
        EXPECT_TRUE(a.close());
        EXPECT_EQ(await_one().tag, 100u);
        expect_message(c, d);
        expect_everything_accounted();
    });
}

TEST_F(Syndromes, OfADatagramEndItsQueuePair) {
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        end_pairs();
        a = runtime.create_queue_pair(shape_of(QpType::ud));
        b = runtime.create_queue_pair(shape_of(QpType::ud));
        const AddressHandle to_b = runtime.create_address_handle(b.info());
        auto burst = burst_of({Opcode::send});
        for (WorkRequest& request : burst) {
            request.ud = {to_b.handle(), b.qp_num()};
            request.remote_qkey = kQkey;
        }
        submit(on(a, recv(100, 128)));
        expect_burst_ends_at(place, burst, syndrome);
        EXPECT_TRUE(a.reset());
        EXPECT_EQ(await_one().tag, 100u);
        submit(on(b, recv(101, 128)));
        burst[1].qp = a.handle();
        burst[1].flags = kSignaled;
        submit(burst[1]);
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << "after a reset";
        }
        expect_everything_accounted();
    });
}

TEST_F(Syndromes, OfASendEndWhatWaitsForCredits) {
    each([&](const Syndrome& syndrome, std::uint32_t) {
        QueuePairOptions options = shape();
        options.flow = FlowControl::credits;
        connect_two_pairs(options);
        submit_receives(b, 100, 2);
        submit(send(0, 8));
        EXPECT_EQ(await(2).size(), 2u);
        // The first send fails, or an earlier message that the runtime itself sends.
        Model::fail_send(a.qp_num(), 0, syndrome.of_device, kVendor);
        submit(sends());
        const auto sent = of(await(kBurst), a.handle(), false);
        ASSERT_EQ(sent.size(), kBurst);
        for (std::uint32_t i = 0; i < kBurst; ++i) {
            EXPECT_EQ(sent[i].tag, i);
            EXPECT_TRUE(sent[i].status == Status::wr_flush_err || (i == 0 && sent[i].status == syndrome.told))
                << status_name(sent[i].status);
        }
        EXPECT_EQ(session.cause(a.handle()), syndrome.told);
        EXPECT_TRUE(b.close());
        EXPECT_EQ(await_one().tag, 101u);
        expect_message(c, d);
        expect_everything_accounted();
    });
}

// ---- Receives ----

TEST_F(Syndromes, OfAReceiveEndBothSidesOfItsConnection) {
    each_everywhere([&](const Syndrome& syndrome, std::uint32_t place) {
        connect_two_pairs(shape());
        expect_receives_end_at(place, syndrome, true);
        expect_message(c, d);
        expect_everything_accounted();
        expect_acknowledged();
    });
}

TEST_F(Syndromes, OfAReceiveOfAnUnreliableConnectionAreNotToldToItsSender) {
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        connect_two_pairs(shape_of(QpType::uc));
        expect_receives_end_at(place, syndrome, false);
        EXPECT_EQ(session.state(a.handle()), QpState::ready);
        expect_message(c, d);
        expect_everything_accounted();
    });
}

TEST_F(Syndromes, OfAReceiveLeaveASharedReceiveQueueToTheOthers) {
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        end_pairs();
        SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 32});
        QueuePairOptions taker = shape();
        taker.srq = &srq;
        const auto connect = [&](QueuePair& from, QueuePair& to) {
            from = runtime.create_queue_pair(shape());
            to = runtime.create_queue_pair(taker);
            const QpInfo info = from.info();
            from.connect(to.info());
            to.connect(info);
        };
        connect(a, b);
        connect(c, d);
        const std::uint64_t last_wqes = told(EventType::qp_last_wqe_reached);
        Model::fail_receive(b.qp_num(), place, syndrome.of_device, kVendor);
        for (std::uint64_t tag = 100; tag < 100 + kBurst + 1; ++tag) {
            WorkRequest receive = recv(tag, 64);
            receive.qp = {};
            receive.srq = srq.handle();
            receive.opcode = Opcode::srq_recv;
            submit(receive);
        }
        submit(sends());
        const auto all = await(kBurst + place + 1);
        expect_sent(of(all, a.handle(), false), place, true);
        const auto received = of(all, b.handle(), true);
        ASSERT_EQ(received.size(), place + 1);
        for (std::uint32_t i = 0; i <= place; ++i) {
            EXPECT_EQ(received[i].srq, srq.handle());
        }
        expect_failed_by_device(received[place], 100 + place, syndrome.told, true);
        EXPECT_EQ(session.cause(b.handle()), syndrome.told);
        until([&] { return told(EventType::qp_last_wqe_reached) > last_wqes; });
        // The other pair takes the SRQ's next receive.
        submit(on(c, send(200, 8)));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success);
            EXPECT_EQ(completion.tag, completion.from_recv_queue() ? 100 + place + 1 : 200);
        }
        EXPECT_TRUE(b.close());
        EXPECT_TRUE(d.close());
        srq.close();
        EXPECT_EQ(await(kBurst - place - 1).size(), kBurst - place - 1);
        expect_everything_accounted();
        expect_acknowledged();
    });
}

TEST_F(Syndromes, OfAReceiveAreToldOnceByAReceivePool) {
    constexpr std::uint32_t kBuffers = 32;
    each([&](const Syndrome& syndrome, std::uint32_t place) {
        end_pairs();
        TestSession reader = runtime.open_session({.pool_buffers = kBuffers, .wide_completions = true});
        ReceivePool pool = runtime.create_receive_pool({.session = &reader, .buffers = kBuffers, .buffer_bytes = 256});
        QueuePairOptions options = shape();
        options.shares[0].session = &reader;
        options.recv_depth = 16;
        options.pool = &pool;
        a = runtime.create_queue_pair(shape());
        b = runtime.create_queue_pair(options);
        const QpInfo info = a.info();
        a.connect(b.info(), kPatient);
        b.connect(info, kPatient);
        Model::fail_receive(b.qp_num(), place, syndrome.of_device, kVendor);
        submit(sends());
        expect_sent(await(kBurst), place, true);
        const auto heard = await_wide(reader, place + 1);
        ASSERT_EQ(heard.size(), place + 1);
        for (std::uint32_t i = 0; i < place; ++i) {
            EXPECT_EQ(heard[i].status, Status::success);
            EXPECT_EQ(pool.message(heard[i]).size(), 8u);
            EXPECT_EQ(reader.release(heard[i]), Refusal::none);
        }
        EXPECT_EQ(heard[place].status, syndrome.told);
        EXPECT_TRUE(heard[place].pooled());
        EXPECT_TRUE(pool.message(heard[place]).empty());
        EXPECT_EQ(reader.release(heard[place]), Refusal::none);
        EXPECT_EQ(reader.cause(b.handle()), syndrome.told);
        EXPECT_TRUE(b.close());
        WideCompletion more;
        EXPECT_EQ(reader.poll({&more, 1}), 0u);
        EXPECT_EQ(pool.counters().posted.value(), 0u);
        expect_everything_accounted();
    });
}

}  // namespace
}  // namespace pollcore::testing
