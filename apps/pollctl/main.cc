// pollctl: gives a running pollcored commands at its control socket (common/control_wire.hpp).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "answer_view.hpp"
#include "ask_daemon.hpp"
#include "common/control_wire.hpp"
#include "ctl_options.hpp"

namespace pollcore::ctl {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How often to ask whether something that takes time is over.
constexpr auto kAskEvery = 100ms;
// A process that is taken down is gone within this time, unless a worker or a device hangs.
constexpr auto kTakenDownWithin = 20s;

Json command(std::string_view name) {
    return {{"protocol", control_wire::kProtocol}, {"command", name}};
}

/// Waits until the process is gone. Throws Refused if it is still there after `within`.
void await_gone(const Options& options, std::uint32_t process, std::chrono::milliseconds within) {
    const auto deadline = Clock::now() + within;
    Json list = command("list");
    list["kind"] = "processes";
    for (;;) {
        const Json answer = ask(options.socket, list, options.answer_within);
        const Json& processes = answer.at("processes");
        const bool there = std::any_of(processes.begin(), processes.end(),
                                       [&](const Json& each) { return each.at("process") == process; });
        if (!there) {
            return;
        }
        if (Clock::now() >= deadline) {
            throw Refused(
                fmt::format("process {} is still being taken down; is a worker or a device hanging? See "
                            "pollctl health",
                            process));
        }
        std::this_thread::sleep_for(kAskEvery);
    }
}

/// Waits until the daemon has no process and no connection. Throws Refused if there are some after `within`.
void await_drained(const Options& options, std::chrono::milliseconds within) {
    const auto deadline = Clock::now() + within;
    for (;;) {
        const Json answer = ask(options.socket, command("status"), options.answer_within);
        const auto processes = answer.at("processes").get<std::uint64_t>();
        const auto connections = answer.at("service_connections").get<std::uint64_t>();
        if (processes == 0 && connections == 0) {
            return;
        }
        if (Clock::now() >= deadline) {
            throw Refused(fmt::format("it drains, and still has {} processes and {} connections to services", processes,
                                      connections));
        }
        std::this_thread::sleep_for(kAskEvery);
    }
}

/// What a person is told of a result, if that is more than the result's fields.
std::string told(const Options& options, const Json& result) {
    const std::string name = options.command.at("command");
    if (name == "drain") {
        return options.drain_wait > 0ms ? "draining: no process and no connection is left\n"
                                        : "draining: no new processes and connections are taken\n";
    }
    if (name == "resume") {
        return "serving: new processes and connections are taken\n";
    }
    if (name == "stop") {
        return "stopping\n";
    }
    if (name == "disconnect-process") {
        return fmt::format("process {} is disconnected\n", *options.until_gone);
    }
    if (name == "disconnect-queue-pair") {
        return fmt::format("queue pair {} is disconnected\n", result.at("qp_num").get<std::uint32_t>());
    }
    if (name == "log-level" || name == "set-log-level") {
        return safe(result.at("level").get<std::string>()) + "\n";
    }
    if (name == "reload") {
        std::string text = fmt::format("reloaded: {}\n", safe(result.at("status").get<std::string>()));
        for (const Json& key : result.at("needs_restart")) {
            text += fmt::format("{} needs a restart\n", safe(key.get<std::string>()));
        }
        return text;
    }
    if (name == "health") {
        return view_of({{"threads", result.at("threads")}}) +
               (result.at("healthy").get<bool>() ? "all threads make progress\n" : "a thread hangs\n");
    }
    if (name == "version") {
        return safe(result.at("version").get<std::string>()) + "\n";
    }
    return view_of(result);
}

int run(const Options& options) {
    const Json result = ask(options.socket, options.command, options.answer_within);
    if (options.until_gone) {
        await_gone(options, *options.until_gone, options.grace + kTakenDownWithin);
    }
    if (options.drain_wait > 0ms) {
        await_drained(options, options.drain_wait);
    }
    fmt::print("{}", options.json ? result.dump(-1, ' ', true) + "\n" : told(options, result));
    const bool unhealthy = options.command.at("command") == "health" && !result.at("healthy").get<bool>();
    return unhealthy ? kExitFailed : kExitOk;
}

}  // namespace
}  // namespace pollcore::ctl

int main(int argc, char** argv) {
    using namespace pollcore::ctl;
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) {
        return parsed.exit_code;
    }
    const auto say = [](const std::exception& error) { fmt::print(stderr, "pollctl: {}\n", safe(error.what())); };
    try {
        return run(*parsed.options);
    } catch (const Refused& error) {
        say(error);
        return kExitFailed;
    } catch (const std::exception& error) {  // also an answer that has other fields than pollcored's
        say(error);
        return kExitNoDaemon;
    }
}
