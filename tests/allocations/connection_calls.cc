// Connections by name.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "calls.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

constexpr const char* kLongName = "a-name-that-is-longer-than-a-short-string";
constexpr std::chrono::milliseconds kUntilGivenUp{3000};

class Listen : public Call {
public:
    void make(World& world) override { listener_ = world.runtime.listen(kLongName); }
    void use(World& world) override {
        QueuePair from = world.runtime.create_queue_pair(world.shape());
        QueuePair to = world.runtime.create_queue_pair(world.shape());
        std::thread active([&] { from.connect(listener_.address(), {.private_data = {}, .timeout = kPatience}); });
        auto request = listener_.next_request(kPatience);
        ASSERT_TRUE(request);
        request->accept(to, {.timeout = kPatience});
        active.join();
        world.exchange(world.second, from, to);
        from.close();
        to.close();
        listener_ = Listener();
    }

private:
    Listener listener_;
};

class StopListening : public Call {
public:
    void prepare(World& world) override { listener_ = world.runtime.listen(kLongName); }
    void make(World&) override { listener_ = Listener(); }
    void use(World& world) override { listener_ = world.runtime.listen(kLongName); }

private:
    Listener listener_;
};

/// Makes both ends of a connection: one thread connects while another thread accepts.
class ConnectByName : public Call {
public:
    explicit ConnectByName(FlowControl flow) : flow_(flow) {}
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        make_ends(world);
    }
    void make(World& world) override {
        if (!from_.valid()) {
            make_ends(world);
        }
        std::exception_ptr active_failed;
        std::exception_ptr passive_failed;
        std::atomic<bool> active_ended{false};
        std::thread active([&] {
            try {
                answer_ = from_.connect(listener_.address(),
                                        {.private_data = bytes("who is there"), .timeout = kUntilGivenUp});
            } catch (...) {
                active_failed = std::current_exception();
            }
            active_ended = true;
        });
        try {
            std::optional<ConnectionRequest> request;
            while (!request && !active_ended) {
                request = listener_.next_request(std::chrono::milliseconds(20));
            }
            if (!request) {
                throw Error(ETIMEDOUT, "no request came");
            }
            asked_ = request->private_data();
            request->accept(to_,
                            {.private_data = bytes("it is me, and I have waited for you"), .timeout = kUntilGivenUp});
        } catch (...) {
            passive_failed = std::current_exception();
        }
        active.join();
        if (active_failed || passive_failed) {
            from_.close();
            to_.close();
            while (listener_.next_request(std::chrono::milliseconds(0))) {  // rejects a request that came too late
            }
            std::rethrow_exception(active_failed ? active_failed : passive_failed);
        }
    }
    void use(World& world) override {
        EXPECT_EQ(asked_, bytes("who is there"));
        EXPECT_EQ(answer_, bytes("it is me, and I have waited for you"));
        world.exchange(world.second, from_, to_);
        from_.disconnect();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!to_.disconnected() && std::chrono::steady_clock::now() < deadline) {
            test::give_way();
        }
        EXPECT_TRUE(to_.disconnected());
        from_.close();
        to_.close();
        listener_ = Listener();
    }

private:
    static std::vector<std::byte> bytes(std::string_view text) {
        const auto* first = reinterpret_cast<const std::byte*>(text.data());
        return {first, first + text.size()};
    }
    void make_ends(World& world) {
        QueuePairOptions options = world.shape();
        options.flow = flow_;
        from_ = world.runtime.create_queue_pair(options);
        to_ = world.runtime.create_queue_pair(options);
    }
    const FlowControl flow_;
    Listener listener_;
    QueuePair from_, to_;
    std::vector<std::byte> asked_, answer_;
};

/// A connection request that waits for its answer, and a thread that waits in connect().
class Asked : public Call {
public:
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        from_ = world.runtime.create_queue_pair(world.shape());
        active_ = std::thread([this] {
            try {
                from_.connect(listener_.address(), {.private_data = {}, .timeout = kPatience});
            } catch (const Error& error) {
                why_ = error.code();
            } catch (const std::bad_alloc&) {  // there was no memory for the error's text
                why_ = std::make_error_code(std::errc::not_enough_memory);
            }
        });
        request_ = listener_.next_request(kPatience);
    }

protected:
    void expect_ended(std::errc why) {
        active_.join();
        EXPECT_TRUE(why_ == why || why_ == std::errc::not_enough_memory) << why_.message();
        from_.close();
        listener_ = Listener();
    }
    QueuePair from_;
    std::optional<ConnectionRequest> request_;

private:
    Listener listener_;
    std::thread active_;
    std::error_code why_;
};

class Reject : public Asked {
public:
    void make(World&) override { request_->reject(); }
    void use(World&) override { expect_ended(std::errc::connection_refused); }
};

class CloseWhileConnecting : public Asked {
public:
    void make(World&) override { from_.close(); }
    void use(World&) override { expect_ended(std::errc::operation_canceled); }
};

/// Closes one end of an established connection. The other end learns of it.
class CloseConnected : public Call {
public:
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        from_ = world.runtime.create_queue_pair(world.shape());
        to_ = world.runtime.create_queue_pair(world.shape());
        std::thread active([&] { from_.connect(listener_.address(), {.timeout = kPatience}); });
        listener_.next_request(kPatience)->accept(to_, {.timeout = kPatience});
        active.join();
    }
    void make(World&) override { from_.close(); }
    void use(World&) override {
        to_.close();
        listener_ = Listener();
    }

private:
    Listener listener_;
    QueuePair from_, to_;
};

/// Makes both ends of a connection on one thread, by events.
class ConnectByEvents : public Call {
public:
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        make_ends(world);
    }
    void make(World& world) override {
        if (!from_.valid()) {
            make_ends(world);
        }
        try {
            from_.begin_connect(listener_.address(), {.timeout = kUntilGivenUp});
            for (int established = 0; established < 2;) {
                const std::optional<Event> event = world.runtime.next_event(kPatience);
                if (!event || event->type == EventType::connect_failed) {
                    throw Error(event ? event->error : ETIMEDOUT, event ? event->text : "no event comes");
                }
                established += event->type == EventType::established;
                if (event->type == EventType::connect_request) {
                    accept_all();
                }
            }
        } catch (...) {
            from_.close();
            to_.close();
            while (listener_.next_request(std::chrono::milliseconds(0))) {  // rejects a request that came too late
            }
            throw;
        }
    }
    void use(World& world) override {
        world.exchange(world.second, from_, to_);
        from_.close();
        to_.close();
        listener_ = Listener();
    }

private:
    void make_ends(World& world) {
        from_ = world.runtime.create_queue_pair(world.shape());
        to_ = world.runtime.create_queue_pair(world.shape());
    }
    void accept_all() {
        while (std::optional<ConnectionRequest> request = listener_.next_request(std::chrono::milliseconds(0))) {
            request->begin_accept(to_, {.timeout = kUntilGivenUp});
        }
    }

    Listener listener_;
    QueuePair from_, to_;
};

/// Ends an operation on a queue pair by an event.
class EndByEvent : public Call {
public:
    explicit EndByEvent(bool reset) : reset_(reset) {}
    void prepare(World& world) override {
        from_ = world.runtime.create_queue_pair(world.shape());
        to_ = world.runtime.create_queue_pair(world.shape());
        World::connect(from_, to_);
    }
    void make(World& world) override {
        reset_ ? to_.begin_reset() : to_.begin_close();
        std::optional<Event> event;
        do {
            event = world.runtime.next_event(kPatience);
            ASSERT_TRUE(event.has_value());
        } while (event->type != (reset_ ? EventType::reset_done : EventType::closed));
        if (reset_) {
            to_.renew(*event);
        } else if (event->error != 0) {
            throw Error(event->error, event->text);
        }
    }
    void use(World& world) override {
        if (reset_) {
            from_.reset();
            World::connect(from_, to_);
            world.exchange(world.second, from_, to_);
        }
        from_.close();
        to_.close();
    }

private:
    const bool reset_;
    QueuePair from_, to_;
};

/// Destroys a queue pair that is being connected.
class AbandonConnecting : public Call {
public:
    void prepare(World& world) override {
        before_ = world.runtime.things();
        listener_ = world.runtime.listen(kLongName);
        from_ = world.runtime.create_queue_pair(world.shape());
        from_.begin_connect(listener_.address(), {.timeout = kPatience});
    }
    void make(World&) override { from_ = QueuePair(); }
    void use(World& world) override {
        listener_ = Listener();
        // The destructor only begins the end.
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (world.runtime.things() != before_ && std::chrono::steady_clock::now() < deadline) {
            test::give_way();
        }
    }

private:
    std::map<std::string, std::uint64_t> before_;
    Listener listener_;
    QueuePair from_;
};

}  // namespace

std::vector<NamedCall> connection_calls() {
    return {
        {"Listen", make_call<Listen>},
        {"StopListening", make_call<StopListening>},
        {"ConnectByName", make_call<ConnectByName, FlowControl::off>},
        {"ConnectByNameWithCredits", make_call<ConnectByName, FlowControl::credits>},
        {"Reject", make_call<Reject>},
        {"CloseWhileConnecting", make_call<CloseWhileConnecting>},
        {"CloseConnected", make_call<CloseConnected>},
        {"ConnectByEvents", make_call<ConnectByEvents>},
        {"CloseByEvent", make_call<EndByEvent, false>},
        {"ResetByEvent", make_call<EndByEvent, true>},
        {"AbandonConnecting", make_call<AbandonConnecting>},
    };
}

}  // namespace pollcore::testing
