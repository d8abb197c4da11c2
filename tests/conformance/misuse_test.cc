// Wrong uses of the library, and the message that each must give. A message names what was wrong, and what is accepted
// or what to do.
#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class Misuse : public Conformance {
protected:
    struct Use {
        const char* what;
        std::function<void()> does;
        std::errc error;
        const char* says;
    };
    struct Request {
        const char* what;
        std::function<Refusal()> submits;
        Refusal refusal;
    };

    Misuse() {
        a = runtime.create_queue_pair(shape());
        b = runtime.create_queue_pair(shape());
    }

    static void expect_refused(const std::vector<Use>& uses) {
        for (const Use& use : uses) {
            SCOPED_TRACE(use.what);
            try {
                use.does();
                ADD_FAILURE() << "no error";
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), use.error) << error.what();
                EXPECT_NE(std::string(error.what()).find(use.says), std::string::npos) << error.what();
            }
        }
    }
    /// A queue pair of the session, changed by `change`.
    template <class F>
    std::function<void()> making(F change) {
        return [this, change] {
            QueuePairOptions options = shape();
            change(options);
            (void)runtime.create_queue_pair(options);
        };
    }
};

TEST_F(Misuse, OfSessionsAndMemoryIsExplained) {
    Session closed;
    expect_refused({
        {"slots that are no power of two", [&] { (void)runtime.open_session({.submission_slots = 1000}); },
         std::errc::invalid_argument, "submission_slots = 1000: accepted is a power of two from 1 to"},
        {"no completion slots", [&] { (void)runtime.open_session({.completion_slots = 0}); },
         std::errc::invalid_argument, "completion_slots = 0: accepted is a power of two"},
        {"too many pool buffers",
         [&] { (void)runtime.open_session({.completion_slots = 1024, .pool_buffers = 1u << 31}); },
         std::errc::invalid_argument, "accepted is up to"},
        {"time stamps without room for them", [&] { (void)runtime.open_session({.device_time = true}); },
         std::errc::invalid_argument, "device_time needs wide_completions"},
        {"an unknown worker", [&] { (void)runtime.open_session({.worker = "nobody"}); }, std::errc::invalid_argument,
         "no worker \"nobody\" in the configuration"},
        {"no bytes", [&] { (void)runtime.allocate(0, Access::local()); }, std::errc::invalid_argument,
         "a memory region of 0 bytes: it has at least one"},
        {"an unknown device", [&] { (void)runtime.allocate(64, Access::local(), "nowhere"); },
         std::errc::no_such_device, "no device \"nowhere\" in the configuration, which has: net0"},
        {"a pool of a session that is not open", [&] { (void)runtime.create_receive_pool({.session = &closed}); },
         std::errc::invalid_argument, "needs an open session"},
        {"a pool without buffers", [&] { (void)runtime.create_receive_pool({.session = &session, .buffers = 0}); },
         std::errc::invalid_argument, "buffers = 0, buffer_bytes = 4096 of a receive pool: accepted is 1 to"},
        {"a pool in a session without room", [&] { (void)runtime.create_receive_pool({.session = &session}); },
         std::errc::no_space_on_device, "it has room for 0 (SessionOptions::pool_buffers)"},
        {"buffers that overlap", [&] { (void)runtime.create_receive_pool({.session = &session, .stride = 64}); },
         std::errc::invalid_argument, "stride = 64 of a receive pool: accepted is"},
        {"a write ring of an odd size", [&] { (void)runtime.create_write_ring({.session = &session, .bytes = 5000}); },
         std::errc::invalid_argument, "bytes = 5000, messages = 256 of a write ring: accepted is a power of two"},
        {"memory that a posted receive names",
         [&] {
             MemoryRegion region = runtime.allocate(64, Access::local());
             ASSERT_EQ(session.try_submit(WorkRequest::recv(a.handle(), region.sge(0, 64))), Refusal::none);
             region.deregister();
         },
         std::errc::device_or_resource_busy, "named by work requests in flight"},
    });
}

TEST_F(Misuse, OfQueuePairOptionsIsExplained) {
    Session closed;
    SharedReceiveQueue no_srq;
    ReceivePool no_pool;
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    Session other = runtime.open_session({.pool_buffers = 64});
    ReceivePool pool = runtime.create_receive_pool({.session = &other, .buffers = 64, .buffer_bytes = 64});
    expect_refused({
        {"nobody who posts", making([](QueuePairOptions& options) { options.shares.clear(); }),
         std::errc::invalid_argument, "a queue pair needs at least one session that posts to it"},
        {"a session that is not open", making([&](QueuePairOptions& options) { options.shares[0].session = &closed; }),
         std::errc::invalid_argument, "a queue pair's share needs an open session"},
        {"one session twice", making([](QueuePairOptions& options) { options.shares.push_back(options.shares[0]); }),
         std::errc::invalid_argument, "a session stands twice in the shares of a queue pair"},
        {"a queue that is too deep", making([](QueuePairOptions& options) { options.shares[0].send_depth = 70'000; }),
         std::errc::invalid_argument, "send_depth = 70000: accepted is up to"},
        {"too many SGEs", making([](QueuePairOptions& options) { options.sges_max = 1000; }),
         std::errc::invalid_argument, "sges_max = 1000, inline_max = 64, recv_depth = 64: accepted is up to"},
        {"an unknown device", making([](QueuePairOptions& options) { options.device = "nowhere"; }),
         std::errc::no_such_device, "no device \"nowhere\""},
        {"a shared receive queue that is not open", making([&](QueuePairOptions& options) { options.srq = &no_srq; }),
         std::errc::invalid_argument, "the shared receive queue of a queue pair is not open"},
        {"a pool that is not open", making([&](QueuePairOptions& options) { options.pool = &no_pool; }),
         std::errc::invalid_argument, "the receive pool of a queue pair is not open"},
        {"a pool of another session", making([&](QueuePairOptions& options) { options.pool = &pool; }),
         std::errc::invalid_argument, "the receive pool belongs to session"},
        {"flow control of datagrams", making([](QueuePairOptions& options) {
             options.type = QpType::ud;
             options.flow = FlowControl::credits;
         }),
         std::errc::invalid_argument, "flow control needs a reliable connection (QpType::rc)"},
        {"credits without receives", making([](QueuePairOptions& options) {
             options.recv_depth = 0;
             options.flow = FlowControl::credits;
         }),
         std::errc::invalid_argument, "needs receives: recv_depth = 0"},
        {"rendezvous without credits", making([&](QueuePairOptions& options) { options.rendezvous_pool = &pool; }),
         std::errc::invalid_argument, "rendezvous needs FlowControl::credits"},
        {"a write ring and a shared receive queue", making([&](QueuePairOptions& options) {
             options.srq = &srq;
             options.flow = FlowControl::ring;
         }),
         std::errc::invalid_argument, "a queue pair with a write ring takes no receives"},
        {"a limit beyond the queue's depth", [&] { srq.arm_limit(17); }, std::errc::invalid_argument,
         "limit = 17 of a shared receive queue of 16 receives: accepted is up to that"},
        {"a shared receive queue in use",
         [&] {
             QueuePairOptions options = shape();
             options.srq = &srq;
             const QueuePair user = runtime.create_queue_pair(options);
             srq.close();
         },
         std::errc::device_or_resource_busy, "close them first"},
        {"a pool in use",
         [&] {
             QueuePairOptions options = shape();
             options.shares[0].session = &other;
             options.recv_depth = 8;
             options.pool = &pool;
             const QueuePair user = runtime.create_queue_pair(options);
             pool.close();
         },
         std::errc::device_or_resource_busy, "close them first"},
    });
}

TEST_F(Misuse, OfConnectionsIsExplained) {
    QueuePairOptions datagrams = shape();
    datagrams.type = QpType::ud;
    QueuePair ud = runtime.create_queue_pair(datagrams);
    QueuePair credits = runtime.create_queue_pair(shape(FlowControl::credits));
    QueuePair connected = runtime.create_queue_pair(shape());
    connected.connect(b.info());
    Listener listener = runtime.listen(listen_address());
    expect_refused({
        {"datagrams have no connection", [&] { ud.connect(a.info()); }, std::errc::invalid_argument,
         "which has no connection: its sends name an address handle"},
        {"a peer of another type", [&] { a.connect(ud.info()); }, std::errc::wrong_protocol_type, "not of one type"},
        {"a peer with flow control", [&] { a.connect(credits.info()); }, std::errc::wrong_protocol_type,
         "and its peer"},
        {"connected already", [&] { connected.connect(b.info()); }, std::errc::already_connected,
         "is connected, or was: reset it first"},
        {"connected already, by address", [&] { connected.connect(listener.address()); }, std::errc::already_connected,
         "is connected, or was: reset it first"},
        {"too much private data",
         [&] { a.connect(listener.address(), {.private_data = std::vector<std::byte>(kRequestPrivateDataMax + 1)}); },
         std::errc::message_size, "private data of 53 bytes does not fit"},
        {"raw private data and flow control",
         [&] { credits.connect(listener.address(), {.form = PrivateDataForm::raw}); }, std::errc::invalid_argument,
         "flow control needs framed private data"},
        {"an address in use", [&] { (void)runtime.listen(listener.address()); }, std::errc::address_in_use, "listen"},
        {"a reset of what is being connected",
         [&] {
             a.begin_connect(listener.address(), {.timeout = std::chrono::hours(1)});
             a.begin_reset();
         },
         std::errc::device_or_resource_busy, "is being connected: wait for the event, or cancel it"},
        {"two attempts at once", [&] { a.begin_connect(listener.address()); }, std::errc::already_connected,
         "reset it first"},
        {"the event of another operation", [&] { (void)a.renew(Event{.type = EventType::closed, .qp = a.handle()}); },
         std::errc::invalid_argument, "not that of a reset that was begun on this queue pair"},
        {"a queue pair that was never made", [] { (void)QueuePair().info(); }, std::errc::invalid_argument,
         "this queue pair is not open: default-constructed, moved from or closed"},
        {"a queue pair that was closed",
         [&] {
             (void)ud.close();
             (void)ud.qp_num();
         },
         std::errc::invalid_argument, "this queue pair is not open"},
        {"a request that was answered",
         [&] {
             ConnectionRequest request;
             request.accept(b);
         },
         std::errc::invalid_argument, "this connection request is not open"},
        {"the way back of what is no datagram",
         [&] { (void)runtime.create_address_handle(WideCompletion{}, std::vector<std::byte>(64)); },
         std::errc::invalid_argument, "a completion that is no datagram's"},
    });
}

TEST_F(Misuse, OfWorkRequestsIsRefusedWithAReason) {
    connect_pair();
    QueuePair unconnected = runtime.create_queue_pair(shape());
    QueuePair closed = runtime.create_queue_pair(shape());
    const QpHandle stale = closed.handle();
    closed.close();
    QueuePairOptions datagrams = shape();
    datagrams.type = QpType::ud;
    QueuePair ud = runtime.create_queue_pair(datagrams);
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    QueuePairOptions shared = shape();
    shared.srq = &srq;
    QueuePair receiving = runtime.create_queue_pair(shared);
    TestSession other = runtime.open_session();
    TestSession ended = runtime.open_session();
    ended.close();
    const Sge sge = local.sge(0, 64);
    const std::vector<Sge> many(5, local.sge(0, 8));
    const std::vector<std::byte> payload(65);
    const std::vector<Request> requests = {
        {"a send before the connection",
         [&] { return session.try_submit(WorkRequest::send(unconnected.handle(), sge)); }, Refusal::not_connected},
        {"a queue pair that was closed", [&] { return session.try_submit(WorkRequest::send(stale, sge)); },
         Refusal::stale_handle},
        {"no queue pair", [&] { return session.try_submit(WorkRequest::send({}, sge)); }, Refusal::stale_handle},
        {"a read on a queue pair for datagrams",
         [&] { return session.try_submit(WorkRequest::rdma_read(ud.handle(), sge, remote.remote())); },
         Refusal::bad_opcode},
        {"more SGEs than the queue pair has",
         [&] { return session.try_submit(WorkRequest::send(a.handle(), {}), many); }, Refusal::too_many_sges},
        {"an SGE that is not counted",
         [&] {
             WorkRequest request = WorkRequest::send(a.handle(), sge);
             request.num_sge = 0;
             return session.try_submit(request);
         },
         Refusal::no_sge},
        {"an inline payload that is too long",
         [&] { return session.try_submit_inline(WorkRequest::send(a.handle(), {}), payload); },
         Refusal::inline_too_long},
        {"an inline payload that is too long, in the request",
         [&] { return session.try_submit(WorkRequest::send(a.handle(), {}).with_inline(payload)); },
         Refusal::inline_too_long},
        {"a payload of more than 4 GB",
         [&] {
             return session.try_submit(
                 WorkRequest::send(a.handle(), {}).with_inline({payload.data(), (std::size_t{1} << 32) + 8}));
         },
         Refusal::inline_too_long},
        {"an inline read",
         [&] {
             return session.try_submit(WorkRequest::rdma_read(a.handle(), sge, remote.remote()).with_flags(kInline));
         },
         Refusal::bad_flags},
        {"an inline receive",
         [&] { return session.try_submit(WorkRequest::recv(a.handle(), sge).with_flags(kInline)); },
         Refusal::bad_flags},
        {"an inline payload of several SGEs",
         [&] {
             return session.try_submit(WorkRequest::send(a.handle(), {}).with_flags(kInline), std::span(many).first(2));
         },
         Refusal::bad_flags},
        {"an inline payload that is not counted",
         [&] {
             WorkRequest request = WorkRequest::send(a.handle(), {}).with_inline(std::span(payload).first(8));
             request.num_sge = 0;
             return session.try_submit(request);
         },
         Refusal::no_sge},
        {"an inline payload before the connection",
         [&] {
             return session.try_submit(
                 WorkRequest::send(unconnected.handle(), {}).with_inline(std::span(payload).first(8)));
         },
         Refusal::not_connected},
        {"an inline payload behind others in a burst that is too long",
         [&] {
             const std::array burst{WorkRequest::rdma_write(a.handle(), sge, remote.remote()),
                                    WorkRequest::send(a.handle(), {}).with_inline(payload)};
             const Submitted submitted = session.try_submit(burst);
             EXPECT_EQ(submitted.accepted, 1u);
             return submitted.refusal;
         },
         Refusal::inline_too_long},
        {"an atomic of four bytes",
         [&] {
             return session.try_submit(
                 WorkRequest::atomic_fetch_and_add(a.handle(), local.sge(0, 4), remote.remote(), 1));
         },
         Refusal::misaligned_atomic},
        {"an atomic at an odd address",
         [&] {
             return session.try_submit(
                 WorkRequest::atomic_fetch_and_add(a.handle(), local.sge(0, 8), remote.remote(4), 1));
         },
         Refusal::misaligned_atomic},
        {"a receive of a queue pair with a shared receive queue",
         [&] { return session.try_submit(WorkRequest::recv(receiving.handle(), sge)); }, Refusal::not_receiver},
        {"a queue pair of another session", [&] { return other.try_submit(WorkRequest::send(a.handle(), sge)); },
         Refusal::no_share},
        {"a closed session", [&] { return ended.try_submit(WorkRequest::send(a.handle(), sge)); },
         Refusal::session_closed},
        {"a queue pair in error",
         [&] {
             a.disconnect();
             return session.try_submit(WorkRequest::send(a.handle(), sge));
         },
         Refusal::qp_in_error},
    };
    for (const Request& request : requests) {
        const Refusal refusal = request.submits();
        EXPECT_EQ(refusal, request.refusal) << request.what;
        EXPECT_FALSE(retryable(refusal)) << request.what;
        EXPECT_GT(refusal_text(refusal).size(), 20u) << "a sentence says what to do";
    }
}

}  // namespace
}  // namespace pollcore::testing
