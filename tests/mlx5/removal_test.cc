// Tests a device that is unplugged: its requests complete, calls on the device are refused, and the other device still
// works.
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "attach/own_server.hpp"
#include "give_way.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "removal_fixture.hpp"

// After the removal the kernel answers each destroy command with EIO, and the libraries then free no memory. So these
// leaks are expected.
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libmlx5\nleak:libibverbs\n";
}

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

TEST_F(Removal, CompletesEveryRequestInFlightInOrder) {
    expect_traffic(first);
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        // The sends wait for receives. The receives wait on a QP to which nobody sends.
        submit(send(first, tag, tag % 4 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
        WorkRequest receive = recv(first, 100 + tag);
        receive.qp = first.a.handle();
        submit(receive);
    }
    lose();
    std::uint64_t next_send = 0;
    std::uint64_t next_recv = 100;
    const auto completions = await(80);
    for (const Completion& completion : completions) {
        EXPECT_EQ(completion.tag, completion.from_recv_queue() ? next_recv++ : next_send++);
        EXPECT_EQ(completion.qp, first.a.handle());
    }
    expect_removed(completions);
    for (const QueuePair* qp : {&first.a, &first.b}) {
        EXPECT_EQ(session.state(qp->handle()), QpState::error);
        EXPECT_EQ(session.cause(qp->handle()), Status::device_removed);
    }
    EXPECT_EQ(session.try_submit(write(first, 1)), Refusal::qp_in_error);
    EXPECT_EQ(session.try_submit(recv(first, 2)), Refusal::qp_in_error);
    expect_others_go_on();
}

TEST_F(Removal, WhileIdleRefusesWhatIsAskedOfTheDevice) {
    lose();
    expect_lost([&] { (void)runtime.create_queue_pair(shape("net0")); });
    expect_lost([&] { (void)runtime.allocate(4096, Access::all(), "net0"); });
    expect_lost([&] { (void)runtime.create_protection_domain("net0"); });
    expect_lost(
        [&] { (void)runtime.create_shared_receive_queue({.device = "net0", .session = &session, .depth = 32}); });
    expect_lost([&] { (void)runtime.create_memory_window(session, WindowType::type_2, "net0"); });
    expect_lost([&] { (void)runtime.create_address_handle(QpInfo{}, {}, "net0"); });
    expect_lost([&] { (void)runtime.listen(unplugged.address + ":0", "net0"); });
    expect_lost([&] { (void)first.a.info(); });
    expect_lost([&] { first.a.connect(QpInfo{}); });
    expect_lost([&] { first.a.connect(unplugged.address + ":1"); });
    expect_lost([&] { first.a.reset(); });
    first.a.disconnect();  // does nothing, and is no error
    EXPECT_TRUE(first.a.disconnected());
    EXPECT_TRUE(first.a.close());
    first.memory.deregister();
    EXPECT_TRUE(first.b.close());
    expect_others_go_on();
}

// Each atomic that was carried out has a CQE, and the runtime delivers its completion.
TEST_F(Removal, UnderTrafficDeliversWhatWasDone) {
    std::set<std::uint64_t> outstanding;
    std::uint64_t tag = 0;
    std::uint64_t added = 0;
    std::uint64_t removed = 0;
    std::uint64_t elsewhere = 0;
    Completion some[32];
    const auto take = [&] {
        for (const Completion& completion : std::span(some, session.poll(some))) {
            EXPECT_EQ(outstanding.erase(completion.tag), 1u) << "tag " << completion.tag;
            if (completion.qp == second.a.handle()) {
                EXPECT_EQ(completion.status, Status::success);
            } else if (completion.status == Status::success) {
                ++added;
                EXPECT_EQ(removed, 0u) << "in order";
            } else {
                EXPECT_EQ(completion.status, Status::device_removed);
                ++removed;
            }
        }
    };
    const std::uint64_t enough = 2000 + static_cast<std::uint64_t>(unplugged.number);
    bool unplugged_now = false;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
        const Refusal refusal = session.try_submit(fetch_and_add(first, tag));
        if (refusal == Refusal::none) {
            outstanding.insert(tag++);
        } else if (refusal == Refusal::qp_in_error) {
            break;
        }
        if (session.try_submit(fetch_and_add(second, tag)) == Refusal::none) {
            outstanding.insert(tag++);
            ++elsewhere;
        }
        if (tag > enough && !std::exchange(unplugged_now, true)) {
            unplug();
        }
        take();
    }
    while (!outstanding.empty() && std::chrono::steady_clock::now() < deadline) {
        take();
        test::give_way();
    }
    EXPECT_TRUE(outstanding.empty());
    EXPECT_EQ(first.counter(), added);
    EXPECT_EQ(second.counter(), elsewhere);
    EXPECT_EQ(session.cause(first.a.handle()), Status::device_removed);
    expect_told();
    expect_others_go_on();
}

TEST_F(Removal, WithUnsignaledRequestsAccountsForEach) {
    for (std::uint64_t tag = 0; tag < 60; ++tag) {
        submit(write(first, tag, 0));
    }
    lose();
    // It is a matter of chance how many writes the device carries out before it is unplugged. The completions name the
    // remaining writes, in order.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::optional<std::uint64_t> last;
    Completion one;
    while (session.figures().in_flight() != 0 && std::chrono::steady_clock::now() < deadline) {
        if (session.poll({&one, 1}) == 1) {
            EXPECT_EQ(one.status, Status::device_removed);
            EXPECT_TRUE(!last || one.tag == *last + 1);
            last = one.tag;
        }
    }
    EXPECT_TRUE(!last || *last == 59u);
    const SessionFigures figures = session.figures();
    EXPECT_EQ(figures.completed + figures.retired, 60u);
    expect_others_go_on();
}

TEST_F(Removal, WhileStoppingLosesNothing) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.device = "net0", .session = &session, .depth = 32});
    QueuePairOptions options = shape("net0");
    options.srq = &srq;
    QueuePair taker = runtime.create_queue_pair(options);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(send(first, tag));
        submit(recv(second, 100 + tag));
        submit(shared_recv(srq, 200 + tag));
    }
    std::thread unplugging([&] { unplug(); });
    (void)runtime.stop();  // the runtime may or may not see the event before it stops
    unplugging.join();
    EXPECT_EQ(await(30).size(), 30u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Removal, JustBeforeAStopLosesNothing) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(send(first, tag));
        submit(recv(first, 100 + tag));
    }
    unplug();
    (void)runtime.stop();
    EXPECT_EQ(await(20).size(), 20u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Removal, BetweenClosesIsNoErrorOfTheirs) {
    std::vector<QueuePair> qps;
    for (int i = 0; i < 40; ++i) {
        qps.push_back(runtime.create_queue_pair(shape("net0")));
        WorkRequest receive = recv(first, static_cast<std::uint64_t>(i));
        receive.qp = qps.back().handle();
        submit(receive);
    }
    std::thread unplugging([&] {
        until([&] { return session.state(qps[10].handle()) == QpState::closed; });
        unplug();
    });
    for (QueuePair& qp : qps) {
        (void)qp.close();
    }
    unplugging.join();
    for (const Completion& completion : await(40)) {
        EXPECT_TRUE(completion.status == Status::wr_flush_err || completion.status == Status::qp_closed ||
                    completion.status == Status::device_removed)
            << status_name(completion.status);
    }
    expect_told();
    expect_others_go_on();
}

// The device is a model of a NIC (tests/mlx5_model). At its pace "hand" it flushes nothing by itself, so the close
// waits until the removal.
TEST_F(Removal, InTheMiddleOfACloseEndsIt) {
    const std::uint64_t sends = runtime.worker_counters(0).sends.value();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(send(first, tag, 0));
    }
    until([&] { return runtime.worker_counters(0).sends.value() == sends + 10; });
    Model::set_pace("hand");
    std::future<bool> closed = std::async(std::launch::async, [&] { return first.a.close(); });
    until([&] { return session.state(first.a.handle()) == QpState::error; });
    unplug();
    Model::set_pace(pace());
    EXPECT_TRUE(closed.get()) << "nobody waits for what does not come";
    expect_removed(await(10));
    expect_told();
    EXPECT_TRUE(first.b.close());
    expect_others_go_on();
}

TEST_F(Removal, WhileThingsAreMadeEndsInARefusal) {
    std::atomic<std::uint64_t> made = 0;
    std::thread unplugging([&] {
        while (made < 20) {
            test::give_way();
        }
        unplug();
    });
    std::vector<QueuePair> qps;
    std::vector<MemoryRegion> memory;
    int refused = 0;
    const auto attempt = [&](auto&& call) {
        try {
            call();
            ++made;
        } catch (const Error& error) {
            // A call between the removal and its event gets the kernel's error.
            EXPECT_TRUE(error.code() == std::errc::no_such_device || error.code() == std::errc::io_error)
                << error.what();
            made = 20;
            refused = error.code() == std::errc::no_such_device ? 2 : refused;
        }
    };
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (refused < 2 && std::chrono::steady_clock::now() < deadline) {
        attempt([&] {
            qps.push_back(runtime.create_queue_pair(shape("net0")));
            if (qps.size() > 30) {
                EXPECT_TRUE(qps.front().close());
                qps.erase(qps.begin());
            }
        });
        attempt([&] {
            memory.push_back(runtime.allocate(4096, Access::all(), "net0"));
            if (memory.size() > 30) {
                memory.erase(memory.begin());
            }
        });
    }
    unplugging.join();
    EXPECT_EQ(refused, 2);
    expect_told();
    qps.clear();
    memory.clear();
    expect_others_go_on();
}

TEST_F(Removal, CompletesTheReceivesOfASharedReceiveQueue) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.device = "net0", .session = &session, .depth = 32});
    QueuePairOptions options = shape("net0");
    options.srq = &srq;
    QueuePair taker = runtime.create_queue_pair(options);
    for (std::uint64_t tag = 0; tag < 20; ++tag) {
        submit(shared_recv(srq, tag));
    }
    lose();
    const auto completions = await(20);
    expect_removed(completions);
    std::set<std::uint64_t> tags;
    for (const Completion& completion : completions) {
        EXPECT_TRUE(tags.insert(completion.tag).second);
        EXPECT_EQ(completion.srq, srq.handle());
    }
    EXPECT_EQ(session.try_submit(shared_recv(srq, 100)), Refusal::stale_handle);
    expect_lost([&] { srq.arm_limit(1); });
    expect_lost([&] { (void)srq.limit(); });
    expect_lost([&] { taker.reset(); });
    EXPECT_THROW(srq.close(), Error) << "its queue pair still names it";
    EXPECT_TRUE(taker.close());
    srq.close();
    expect_others_go_on();
}

TEST_F(Removal, EndsReceivePools) {
    Session reader = runtime.open_session({.pool_buffers = 32, .wide_completions = true});
    ReceivePool pool =
        runtime.create_receive_pool({.device = "net0", .session = &reader, .buffers = 32, .buffer_bytes = 256});
    QueuePairOptions options = shape("net0");
    options.shares[0].session = &reader;
    options.recv_depth = 16;
    options.pool = &pool;
    QueuePair from = runtime.create_queue_pair(shape("net0"));
    QueuePair to = runtime.create_queue_pair(options);
    const QpInfo info = from.info();
    from.connect(to.info(), kWaits);
    to.connect(info, kWaits);
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        WorkRequest request = send(first, tag);
        request.qp = from.handle();
        submit(request);
    }
    EXPECT_EQ(await(5).size(), 5u);
    lose();
    std::vector<WideCompletion> heard;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (heard.size() < 6 && std::chrono::steady_clock::now() < deadline) {
        WideCompletion one;
        if (reader.poll({&one, 1}) == 1) {
            heard.push_back(one);
        }
    }
    ASSERT_EQ(heard.size(), 6u);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(heard[i].status, Status::success);
        EXPECT_EQ(pool.message(heard[i]).size(), 8u);
        EXPECT_EQ(reader.release(heard[i]), Refusal::none);
    }
    EXPECT_EQ(heard[5].status, Status::device_removed);
    EXPECT_TRUE(heard[5].pooled());
    EXPECT_EQ(reader.release(heard[5]), Refusal::none);
    EXPECT_TRUE(to.close());
    EXPECT_TRUE(from.close());
    pool.close();
    reader.close();
    expect_others_go_on();
}

TEST_F(Removal, LeavesWindowsAndAddressHandlesToTheirOwners) {
    Access access = Access::all();
    access.window_bind = true;
    MemoryRegion region = runtime.allocate(4096, access, "net0");
    MemoryWindow bound = runtime.create_memory_window(session, WindowType::type_2, "net0");
    MemoryWindow unused = runtime.create_memory_window(session, WindowType::type_1, "net0");
    submit({.tag = 1,
            .bind = {bound.handle(), region.handle(), 64},
            .remote_addr = region.addr(),
            .bind_access = kWindowWrite,
            .rkey = next_rkey(bound.rkey()),
            .qp = first.b.handle(),
            .opcode = Opcode::bind_mw,
            .flags = kSignaled,
            .num_sge = 0});
    EXPECT_EQ(await(1).at(0).status, Status::success);
    QueuePairOptions options = shape("net0");
    options.type = QpType::ud;
    options.qkey = 0x1234;
    QueuePair from = runtime.create_queue_pair(options);
    QueuePair to = runtime.create_queue_pair(options);
    AddressHandle to_to = runtime.create_address_handle(to.info(), {}, "net0");
    WorkRequest datagram = send(first, 2);
    datagram.qp = from.handle();
    datagram.ud = {to_to.handle(), to.qp_num()};
    datagram.remote_qkey = 0x1234;
    WorkRequest receive = recv(first, 3);
    receive.qp = to.handle();
    receive.sge.length = 128;
    submit(receive);
    submit(datagram);
    EXPECT_EQ(await(2).size(), 2u);
    submit(receive);
    lose();
    expect_removed(await(1));
    EXPECT_EQ(session.try_submit(datagram), Refusal::qp_in_error);
    to_to.destroy();
    bound.deallocate();
    unused.deallocate();
    region.deregister();
    EXPECT_TRUE(from.close());
    EXPECT_TRUE(to.close());
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    expect_others_go_on();
}

// ---- Processes that are attached ----

TEST_F(Removal, IsToldToAnAttachedProcessAndItsDaemonLivesOn) {
    const AttachConfig config = test::socket_named("removal");
    AttachServer server(runtime, config);
    {
        Attachment daemon(test::patient({.path = config.path, .name = "test"}));
        Session theirs = daemon.open_session();
        MemoryRegion memory = daemon.allocate(4096, Access::all(), "net0");
        QueuePairOptions options = shape("net0");
        options.shares[0].session = &theirs;
        QueuePair qp = daemon.create_queue_pair(options);
        for (std::uint64_t tag = 0; tag < 10; ++tag) {
            ASSERT_EQ(theirs.try_submit({.tag = tag,
                                         .sge = {memory.addr(), 64, memory.lkey()},
                                         .qp = qp.handle(),
                                         .opcode = Opcode::recv,
                                         .num_sge = 1}),
                      Refusal::none);
        }
        lose();
        expect_removed(await(theirs, 10));
        EXPECT_EQ(theirs.cause(qp.handle()), Status::device_removed);
        bool told = false;
        for (const auto deadline = std::chrono::steady_clock::now() + kPatience;
             !told && std::chrono::steady_clock::now() < deadline;) {
            const std::optional<Event> event = daemon.next_event(10ms);
            told = event && event->type == EventType::device_fatal && event->device == "net0";
        }
        EXPECT_TRUE(told);
        expect_lost([&] { (void)daemon.allocate(4096, Access::all(), "net0"); });
        expect_lost([&] { (void)daemon.create_queue_pair(options); });
        // The process can still use the other device.
        options.device = "net1";
        QueuePair alive = daemon.create_queue_pair(options);
        EXPECT_TRUE(alive.close());
        EXPECT_TRUE(qp.close());
        memory.deregister();
        theirs.close();
        EXPECT_TRUE(daemon.stop());
    }
    Attachment next(test::patient({.path = config.path, .name = "next"}));
    EXPECT_TRUE(next.open_session().valid());
    EXPECT_TRUE(next.stop());
    EXPECT_TRUE(server.stop(1s));
    expect_others_go_on();
}

}  // namespace
}  // namespace pollcore::testing
