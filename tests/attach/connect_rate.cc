// Measures how many connections one thread makes and ends in a second through events, for scripts/bench. Both ends of
// each connection are queue pairs of this process on one software device.
//
//   connect-rate embedded|attached OPEN TIMES
//
// Makes OPEN connections, which stay open. Then makes and ends kBatch connections, TIMES times. Prints JSON with the
// connections that were made in a second and those that were ended in a second, one number for each time. Making a
// connection includes making its two queue pairs.
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attach/daemon_fixture.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {
namespace {

constexpr std::size_t kBatch = 500;
constexpr std::size_t kUnderWay = 32;  // connections that are being made at a time
constexpr std::uint32_t kQps = 32'768;

class Connections {
public:
    /// The first half of `open` connections is on the second device, because a worker has at most 16384 queue pairs on
    /// one.
    Connections(Context& context, std::size_t open)
        : context_(context),
          open_(open),
          session_(context.open_session()),
          listeners_{context.listen("net0", "net0"), context.listen("net1", "net1")} {}

    /// Makes connections until there are `count`.
    void make(std::size_t count) {
        while (established_ < 2 * count) {
            while (callers_.size() < count && callers_.size() - established_ / 2 < kUnderWay) {
                const std::string device = device_of(callers_.size());
                callers_.push_back(make_qp(device));
                callers_.back().begin_connect(device);
            }
            take_event();
        }
    }
    /// Ends connections until there are `count`.
    void end(std::size_t count) {
        const std::size_t ends = 2 * (callers_.size() - count);
        closed_ = 0;
        for (std::size_t i = count; i < callers_.size(); ++i) {
            callers_[i].begin_close();
            called_[i].begin_close();
        }
        while (closed_ < ends) {
            take_event();
        }
        callers_.resize(count);
        called_.resize(count);
        established_ = 2 * count;
    }

private:
    /// The device of a connection, which is also the name of the device's listener.
    [[nodiscard]] std::string device_of(std::size_t connection) const {
        return connection < open_ / 2 ? "net1" : "net0";
    }
    [[nodiscard]] QueuePair make_qp(const std::string& device) {
        return context_.create_queue_pair(
            {.device = device, .shares = {{.session = &session_, .send_depth = 1}}, .recv_depth = 1});
    }
    void take_event() {
        const std::optional<Event> event = context_.next_event(kPatience);
        if (!event || event->error != 0) {
            throw std::runtime_error(event ? event->text : "no event comes");
        }
        switch (event->type) {
            case EventType::connect_request:
                for (std::size_t i = 0; i < listeners_.size(); ++i) {
                    while (std::optional<ConnectionRequest> request = listeners_[i].next_request(0ms)) {
                        called_.push_back(make_qp("net" + std::to_string(i)));
                        request->begin_accept(called_.back());
                    }
                }
                break;
            case EventType::established: ++established_; break;
            case EventType::closed: ++closed_; break;
            default: break;
        }
    }

    Context& context_;
    const std::size_t open_;
    Session session_;
    std::array<Listener, 2> listeners_;
    std::vector<QueuePair> callers_;
    std::vector<QueuePair> called_;
    std::size_t established_ = 0;
    std::size_t closed_ = 0;
};

void print(const char* name, const std::vector<double>& rates, const char* after) {
    std::printf("\"%s\": [", name);
    for (std::size_t i = 0; i < rates.size(); ++i) {
        std::printf("%s%.0f", i == 0 ? "" : ", ", rates[i]);
    }
    std::printf("]%s", after);
}

void measure(Context& context, std::size_t open, int times) {
    Connections connections(context, open);
    connections.make(open);
    std::vector<double> made;
    std::vector<double> ended;
    const auto rate = [](auto&& what) {
        const auto began = Clock::now();
        what();
        return static_cast<double>(kBatch) / std::chrono::duration<double>(Clock::now() - began).count();
    };
    for (int i = 0; i < times; ++i) {
        made.push_back(rate([&] { connections.make(open + kBatch); }));
        ended.push_back(rate([&] { connections.end(open); }));
    }
    std::printf("{");
    print("made", made, ", ");
    print("ended", ended, "}\n");
}

int run(bool attached, std::size_t open, int times) {
    TemporaryDirectory directory;
    Config config = daemon_config(directory.path());
    config.qps_max = kQps;
    config.workers[0].idle = IdlePolicy::spin;
    config.devices.push_back({.name = "net1"});
    if (!attached) {
        config.attach = {};
        Runtime runtime(config);
        measure(runtime, open, times);
        return 0;
    }
    config.attach.queue_pairs_max = config.attach.user_queue_pairs_max = kQps;
    config.attach.work_requests_max = 4 * kQps;
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", pollcored_path(), "--config",
                    directory.write("pollcored.toml", print_config(config)).string()},
                   {}, directory.path());
    Attachment attachment({.path = config.attach.path, .name = "rate", .timeout = kPatience});
    measure(attachment, open, times);
    return 0;
}

}  // namespace
}  // namespace pollcore::test

int main(int argc, char** argv) {
    const bool attached = argc == 4 && std::strcmp(argv[1], "attached") == 0;
    if (argc != 4 || (!attached && std::strcmp(argv[1], "embedded") != 0)) {
        std::fputs("usage: connect-rate embedded|attached OPEN TIMES\n", stderr);
        return 2;
    }
    try {
        return pollcore::test::run(attached, static_cast<std::size_t>(std::atol(argv[2])), std::atoi(argv[3]));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "connect-rate: %s\n", error.what());
        return 1;
    }
}
