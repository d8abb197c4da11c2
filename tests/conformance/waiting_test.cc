// Workers and applications sleep until an event wakes them. No thread wakes up from time to time in order to look.
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "base/cpu_pause.hpp"
#include "base/unique_fd.hpp"
#include "fixture.hpp"
#include "thread_calls.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

// Returns how many times a thread of this process has given up its CPU voluntarily.
std::uint64_t times_given_away(int thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    std::uint64_t times = 0;
    for (std::string key; status >> key;) {
        if (key == "voluntary_ctxt_switches:" && status >> times) {
            return times;
        }
    }
    ADD_FAILURE() << "the kernel says nothing of thread " << thread;
    return 0;
}

Config sleepers(WakeOn wake_on = WakeOn::all) {
    Config config = test_config(2);
    for (WorkerConfig& worker : config.workers) {
        worker.idle = IdlePolicy::event;
        worker.wake_on = wake_on;
    }
    return config;
}

// `near` sends on a, by worker 0. `far` receives on b, by worker 1, and its application may sleep. Both workers sleep
// when they have nothing to do.
class Waiting : public Conformance {
protected:
    explicit Waiting(const Config& config = sleepers())
        : Conformance(config), far(runtime.open_session({.worker = "w1", .events = true, .wait_spin = 0ns})) {
        QueuePairOptions there = shape();
        there.shares = {{.session = &far, .send_depth = 64}};
        QueuePairOptions here = shape();
        here.shares = {{.session = &near, .send_depth = 64}};
        a = runtime.create_queue_pair(here);
        b = runtime.create_queue_pair(there);
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, kPath);
        b.connect(info_a, kPath);
    }
    [[nodiscard]] std::uint64_t sleeps(std::size_t worker) { return runtime.worker_counters(worker).sleeps.value(); }
    [[nodiscard]] bool asleep(std::size_t worker) { return runtime.worker_counters(worker).asleep.value() != 0; }
    // Waits until the worker sleeps and no earlier event is left that could wake it.
    void await_asleep(std::size_t worker) {
        if (HasFatalFailure()) {
            return;  // an earlier wait has failed, so this worker never sleeps
        }
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        std::uint64_t before = 0;
        do {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "worker " << worker << " does not sleep";
            before = sleeps(worker);
            std::this_thread::sleep_for(TestDevice::get().is_rxe() ? 20ms : 2ms);
        } while (!asleep(worker) || sleeps(worker) != before);
    }
    void await_asleep() {
        await_asleep(0);
        await_asleep(1);
    }
    void add_idle_queue_pairs(int n) {
        for (int i = 0; i < n; ++i) {
            QueuePairOptions options;
            options.shares = {{.session = i % 2 == 0 ? &near : &far, .send_depth = 4}};
            options.recv_depth = 4;
            idle.push_back(runtime.create_queue_pair(options));
        }
    }
    // A worker may be woken long before its thread runs. A worker that has answered a command has also taken all
    // earlier wake-ups.
    void await_heard(const char* worker) { runtime.open_session({.worker = worker}).close(); }
    // Retries without limit, because a message may come before the other worker has posted the receive.
    static constexpr PathAttributes kPath{.rnr_retry = 7};
    static constexpr auto kStretch = 500ms;  // long enough for anything that happens from time to time
    // Takes long enough for anything that must happen soon.
    static void pass_time() { std::this_thread::sleep_for(TestDevice::get().is_rxe() ? 300ms : 50ms); }

    TestSession near{runtime.open_session({.worker = "w0"})};
    TestSession far;
    std::vector<QueuePair> idle;
};

TEST_F(Waiting, EndsWhenAnotherThreadPokes) {
    for (Session* waiter : {&far, &near}) {  // `far` sleeps, and `near` only spins
        waiter->poke();
        EXPECT_TRUE(waiter->wait(std::chrono::nanoseconds::max())) << "a poke before the wait ends it, too";
        EXPECT_FALSE(waiter->wait(1ms)) << "a poke ends one wait";
        std::thread other([&] {
            std::this_thread::sleep_for(20ms);
            waiter->poke();
        });
        std::array<Completion, 4> out;
        EXPECT_EQ(waiter->poll(out, std::chrono::nanoseconds::max()), 0u);
        other.join();
    }
}

TEST_F(Waiting, AWorkerSleepsUntilSomethingIsSubmitted) {
    for (std::uint64_t tag = 1; tag <= 20; ++tag) {
        await_asleep(0);
        const std::uint64_t before = sleeps(0);
        submit(near, rdma(Opcode::rdma_write, tag, 64));
        const auto done = await(near, 1);
        ASSERT_EQ(done.size(), 1u);
        EXPECT_EQ(done[0].tag, tag);
        EXPECT_EQ(done[0].status, Status::success);
        await_asleep(0);
        EXPECT_GT(sleeps(0), before);
    }
    std::uint64_t wakes = 0;
    for (const Counter& bucket : runtime.worker_counters(0).wake_cycles) {
        wakes += bucket.value();
    }
    EXPECT_GE(wakes, 20u) << "each wake-up by the session was timed";
}

TEST_F(Waiting, AWorkerSleepsUntilAMessageComes) {
    for (std::uint64_t tag = 1; tag <= 20; ++tag) {
        submit(far, recv(tag, 64));
        await_heard("w1");  // otherwise one wake-up could be for the receive and for the message
        await_asleep();
        const std::uint64_t events = runtime.worker_counters(1).cq_events.value();
        submit(near, send(tag, 32));
        const auto received = await(far, 1);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].tag, tag);
        EXPECT_GT(runtime.worker_counters(1).cq_events.value(), events);
        (void)await(near, 1);
    }
}

TEST_F(Waiting, ACommandWakesAWorker) {
    const auto expect_woken = [&](std::size_t worker, auto command) {
        await_asleep();
        const std::uint64_t before = sleeps(worker);
        command();
        await_asleep();
        EXPECT_GT(sleeps(worker), before);
    };
    Session more;
    expect_woken(1, [&] { more = runtime.open_session({.worker = "w1"}); });
    expect_woken(1, [&] { more.close(); });
    expect_woken(0, [&] { EXPECT_TRUE(a.reset()); });
    expect_woken(1, [&] { EXPECT_TRUE(b.close()); });
}

TEST_F(Waiting, AnApplicationSleepsUntilACompletionComes) {
    EXPECT_FALSE(far.wait(0ns));
    const std::uint64_t before = times_given_away(::gettid());
    EXPECT_FALSE(far.wait(100ms));
    EXPECT_GT(times_given_away(::gettid()), before) << "it has not slept";

    constexpr std::uint64_t kMessages = 20;
    std::atomic<std::uint64_t> asked{0};
    // The session `near` belongs to the thread `sender` alone. This thread must not use submit(), because submit()
    // takes notes, which belong to the main thread.
    std::thread sender([&] {
        Session& own = near;
        for (std::uint64_t tag = 1; tag <= kMessages; ++tag) {
            asked.wait(tag - 1);
            std::this_thread::sleep_for(2ms);
            EXPECT_EQ(own.try_submit(send(tag, 32)), Refusal::none);
            Completion sent;
            while (own.poll({&sent, 1}) == 0) {
                std::this_thread::sleep_for(100us);
            }
            EXPECT_TRUE(sent.ok());
        }
    });
    for (std::uint64_t tag = 1; tag <= kMessages; ++tag) {
        submit(far, recv(tag, 64));
        await_asleep();
        asked = tag;
        asked.notify_one();
        EXPECT_TRUE(far.wait(kPatience));
        EXPECT_TRUE(far.wait(0ns)) << "it stands there until it is polled";
        EXPECT_FALSE(far.arm()) << "no need to";
        Completion received;
        EXPECT_EQ(far.poll({&received, 1}), 1u);
        EXPECT_EQ(received.tag, tag);
    }
    sender.join();
    EXPECT_GT(runtime.worker_counters(1).applications_woken.value(), 0u);
}

TEST_F(Waiting, AnApplicationWaitsInItsOwnEventLoop) {
    EXPECT_EQ(near.event_fd(), -1) << "did not ask for events";
    EXPECT_FALSE(near.arm());
    const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event interest{.events = EPOLLIN, .data = {.u64 = 7}};
    ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, far.event_fd(), &interest), 0);
    const auto readable = [&](std::chrono::milliseconds timeout) {
        epoll_event event{};
        return ::epoll_wait(epoll.get(), &event, 1, static_cast<int>(timeout.count())) == 1;
    };
    for (std::uint64_t tag = 1; tag <= 10; ++tag) {
        submit(far, recv(tag, 64));
        ASSERT_TRUE(far.arm());
        EXPECT_FALSE(readable(0ms));
        submit(near, send(tag, 32));
        ASSERT_TRUE(readable(std::chrono::duration_cast<std::chrono::milliseconds>(kPatience)));
        Completion received;
        ASSERT_EQ(far.poll({&received, 1}), 1u);
        EXPECT_EQ(received.tag, tag);
        (void)await(near, 1);
    }
}

TEST_F(Waiting, EndsWhenTheRuntimeStops) {
    for (std::uint64_t tag = 1; tag <= 5; ++tag) {
        submit(far, recv(tag, 64));
    }
    std::thread stopper([&] {
        std::this_thread::sleep_for(20ms);
        EXPECT_TRUE(runtime.stop());
    });
    std::size_t taken = 0;
    while (far.wait(kPatience)) {
        Completion some[8];
        taken += far.poll(some);
    }
    EXPECT_EQ(taken, 5u);
    stopper.join();
}

TEST_F(Waiting, QueuePairsAreClosedWhileTheirEventsAreNotAcknowledged) {
    for (std::uint64_t tag = 1; tag <= 5; ++tag) {
        submit(far, recv(tag, 64));
        await_asleep();
        submit(near, send(tag, 32));
        (void)await(far, 1);
        (void)await(near, 1);
    }
    const WorkerCounters& counters = runtime.worker_counters(1);
    EXPECT_GT(counters.cq_events.value(), 0u);
    EXPECT_EQ(counters.cq_event_acks.value(), 0u) << "that is done for many at once";
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
    EXPECT_TRUE(runtime.stop());
}

TEST_F(Waiting, AnIdleWorkerWithManyQueuePairsTakesNoStep) {
    add_idle_queue_pairs(100);
    await_asleep();
    const auto turns = [&](std::size_t worker) {
        const WorkerCounters& counters = runtime.worker_counters(worker);
        return std::array{counters.steps.value(), counters.sleeps.value(), counters.spurious_wakeups.value()};
    };
    const std::array before{turns(0), turns(1)};
    std::this_thread::sleep_for(kStretch);
    for (std::size_t worker = 0; worker < 2; ++worker) {
        EXPECT_EQ(turns(worker), before[worker]) << "worker " << worker;
        EXPECT_TRUE(asleep(worker));
    }
}

// The kernel must not wake the worker's thread either, for example by a timer.
TEST_F(Waiting, AnIdleWorkersThreadIsNotWokenInThisProcess) {
    add_idle_queue_pairs(100);
    await_asleep();
    for (std::size_t worker = 0; worker < 2; ++worker) {  // a worker sets `asleep` shortly before its thread sleeps
        until([&] { return test::state_of(runtime.worker_thread_id(worker)) == 'S'; });
    }
    const auto switches = [&](std::size_t worker) { return times_given_away(runtime.worker_thread_id(worker)); };
    const std::array before{switches(0), switches(1)};
    std::this_thread::sleep_for(kStretch);
    EXPECT_EQ(switches(0), before[0]);
    EXPECT_EQ(switches(1), before[1]);
    submit(near, rdma(Opcode::rdma_write, 1, 64));
    EXPECT_EQ(await(near, 1).size(), 1u);
    await_asleep();
    EXPECT_GT(switches(0), before[0]) << "else this test sees nothing";
}

// The sleeping thread must not use a timer, which would hide a missing wake-up.
TEST_F(Waiting, AnApplicationThatSleepsIsWokenByItsCompletionAlone) {
    submit(far, recv(1, 64));
    std::atomic<int> thread{0};
    std::atomic<std::uint64_t> before{0};
    far.hand_over();
    std::thread sleeper([&] {
        Session& own = far;
        before = times_given_away(::gettid());
        thread = ::gettid();
        EXPECT_TRUE(own.wait(std::chrono::nanoseconds::max()));
        own.hand_over();
    });
    until([&] { return thread != 0 && times_given_away(thread) > before; });  // now the thread sleeps
    pass_time();
    const std::uint64_t asleep = times_given_away(thread);
    std::this_thread::sleep_for(kStretch);
    EXPECT_EQ(times_given_away(thread), asleep);
    submit(near, send(1, 32));
    sleeper.join();
    EXPECT_EQ(await(far, 1).size(), 1u);
    EXPECT_EQ(await(near, 1).size(), 1u);
}

// Messages go back and forth between two sleeping threads, through sleeping workers. The pauses between messages are
// about as long as falling asleep takes. If a wake-up is lost, the test ends and prints what each worker was doing.
TEST_F(Waiting, NoWakeUpIsLostInARace) {
    const char* const seconds = std::getenv("POLLCORE_RACE_SECONDS");
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 1);
    TestSession caller{runtime.open_session({.worker = "w0", .events = true, .wait_spin = 0ns})};
    QueuePairOptions here = shape();
    here.shares = {{.session = &caller, .send_depth = 64}};
    QueuePairOptions there = shape();
    there.shares = {{.session = &far, .send_depth = 64}};
    QueuePair c = runtime.create_queue_pair(here);
    QueuePair d = runtime.create_queue_pair(there);
    const QpInfo info_c = c.info();
    const QpInfo info_d = d.info();
    c.connect(info_d, kPath);
    d.connect(info_c, kPath);

    constexpr auto kLost = kPatience;
    std::atomic<bool> stop{false};
    const auto pause = [](std::mt19937& random) {
        for (std::uint32_t spins = random() % 8 == 0 ? random() % 20'000 : 0; spins > 0; --spins) {
            cpu_pause();
        }
    };
    // Takes one message, for which a receive was posted before. Returns false if no message comes.
    const auto take = [&](Session& from) {
        while (from.wait(kLost)) {
            Completion completion;
            while (from.poll({&completion, 1}) == 1) {
                EXPECT_TRUE(completion.ok());
                if (completion.from_recv_queue()) {
                    return true;
                }
            }
        }
        return false;
    };
    const auto post = [&](Session& from, const QueuePair& qp, Opcode opcode) {
        const WorkRequest request{.sge = local_sge(8), .qp = qp.handle(), .opcode = opcode, .num_sge = 1};
        while (from.try_submit(request) != Refusal::none) {
            (void)from.wait(kLost);
        }
    };
    std::uint64_t rounds = 0;
    std::atomic<bool> ready{false};
    std::thread answerer([&] {
        std::mt19937 random(1);
        post(far, d, Opcode::recv);
        ready = true;
        ready.notify_one();
        while (!stop) {
            if (take(far) && !stop) {
                post(far, d, Opcode::recv);
                pause(random);
                post(far, d, Opcode::send);
            }
        }
    });
    ready.wait(false);
    std::mt19937 random(2);
    bool lost = false;
    while (!lost && std::chrono::steady_clock::now() < until) {
        post(caller, c, Opcode::recv);
        pause(random);
        post(caller, c, Opcode::send);
        lost = !take(caller);
        rounds += !lost;
    }
    if (lost) {
        for (std::size_t worker = 0; worker < 2; ++worker) {
            const WorkerCounters& counters = runtime.worker_counters(worker);
            ADD_FAILURE() << "worker " << worker << (asleep(worker) ? " sleeps" : " is awake") << " after "
                          << counters.sleeps.value() << " sleeps, " << counters.cq_events.value() << " events, "
                          << counters.steps.value()
                          << " steps; applications woken: " << counters.applications_woken.value();
        }
        ADD_FAILURE() << "after " << rounds << " rounds; in flight here " << caller.figures().in_flight();
    }
    stop = true;
    post(caller, c, Opcode::send);  // the last message, for which the answerer waits
    answerer.join();
    RecordProperty("rounds", std::to_string(rounds));
    EXPECT_GT(rounds, 10u);
    EXPECT_GT(sleeps(0) + sleeps(1), rounds);
}

class WaitingForSolicited : public Waiting {
protected:
    WaitingForSolicited() : Waiting(sleepers(WakeOn::solicited)) {}
};

TEST_F(WaitingForSolicited, OnlySolicitedAndFailedCompletionsWakeTheWorker) {
    for (std::uint64_t tag = 1; tag <= 6; ++tag) {
        submit(far, recv(tag, 64));
    }
    await_heard("w1");
    await_asleep();
    const std::uint64_t before = sleeps(1);
    submit(near, send(1, 32, 0));
    submit(near, send(2, 32, 0));
    pass_time();
    Completion none;
    EXPECT_EQ(far.poll({&none, 1}), 0u);
    EXPECT_EQ(sleeps(1), before) << "it slept on";
    submit(near, send(3, 32, kSolicited));
    for (std::uint64_t tag = 1; const Completion& received : await(far, 3)) {
        EXPECT_EQ(received.tag, tag++);
    }
    await_asleep();
    submit(near, send(4, 32, 0));
    pass_time();
    EXPECT_EQ(far.poll({&none, 1}), 0u);
    submit(near, send(5, 1024, 0));  // too long for its receive, so the receive fails
    const auto failed = await(far, 2);
    ASSERT_EQ(failed.size(), 2u);
    EXPECT_EQ(failed[0].status, Status::success);
    EXPECT_EQ(failed[1].status, expected(Status::loc_len_err, Status::loc_qp_op_err));
}

TEST(WaitingRefused, WhereTheDeviceDoesNotModerate) {
    Config config = sleepers();
    config.workers[0].moderation_count = 8;
    config.workers[0].moderation_period = 100us;
    if (!TestDevice::get().is_rxe()) {
        EXPECT_NO_THROW(Runtime{config});
        return;
    }
    try {
        const Runtime runtime(config);
        FAIL() << "Soft-RoCE does not moderate";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EOPNOTSUPP) << error.what();
        EXPECT_NE(std::string(error.what()).find("moderation_count = 8"), std::string::npos) << error.what();
    }
}

TEST(WaitingRefused, WhereTheDeviceHasNoSuchVector) {
    Config config = sleepers();
    config.workers[1].comp_vector = 60000;
    try {
        const Runtime runtime(config);
        FAIL() << "no device has so many";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("comp_vector = 60000"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace pollcore::testing
