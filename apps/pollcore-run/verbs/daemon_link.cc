#include "daemon_link.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include <fmt/format.h>

#include "conversions.hpp"
#include "remedy.hpp"
#include "told_once.hpp"

namespace pollcore::served {
namespace {

struct Link {
    std::mutex mutex;
    Attachment* attachment = nullptr;
    pid_t owner = 0;                               // the process that has attached
    std::vector<std::unique_ptr<Device>> devices;  // of all attachments of this process, by name
    std::vector<Device*> served;                   // by the present attachment
};

// Never destroyed: programs may call verbs while their static objects are destroyed.
Link& link_of_process() {
    static Link& link = *new Link;
    return link;
}

void detach_at_exit() noexcept {
    Link& link = link_of_process();
    const std::lock_guard guard(link.mutex);
    if (link.attachment != nullptr && link.owner == ::getpid()) {
        (void)link.attachment->stop();
    }
}

// In a child of fork(2): the process is not attached any more.
void forget_daemon() noexcept {
    Link& link = link_of_process();
    // Another thread of the parent may have held the mutex, which is then locked for ever in this child.
    new (&link.mutex) std::mutex;
    link.attachment = nullptr;
    link.served.clear();
}

std::string setting(const char* variable, const char* otherwise) {
    const char* value = std::getenv(variable);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

void copy_name(char (&into)[IBV_SYSFS_NAME_MAX], std::string_view name) noexcept {
    into[name.copy(into, sizeof into - 1)] = '\0';
}

void copy_path(char (&into)[IBV_SYSFS_PATH_MAX], const std::string& path) noexcept {
    into[path.copy(into, sizeof into - 1)] = '\0';
}

void describe(Device& device, const DeviceReport& report, const DeviceAttributes& attributes, std::size_t number) {
    device.name = report.name;
    device.attributes = as_served(attributes);
    device.port_num = report.port_num;
    device.kernel = !report.uverbs_name.empty();
    device.index = lists_beside() ? -1 : report.ibv_index;
    const std::string shown = lists_beside() ? "pollcore-" + report.name : report.verbs_name;
    // Programs expect a kernel's name of each device. A software device has none, so it gets a high number.
    const std::string file =
        device.kernel && !lists_beside() ? report.uverbs_name : fmt::format("uverbs{}", 1000 + number);
    device.verbs.node_type = IBV_NODE_CA;
    device.verbs.transport_type = IBV_TRANSPORT_IB;
    copy_name(device.verbs.name, shown);
    copy_name(device.verbs.dev_name, file);
    copy_path(device.verbs.dev_path, "/sys/class/infiniband_verbs/" + file);
    copy_path(device.verbs.ibdev_path, "/sys/class/infiniband/" + (lists_beside() ? shown : report.verbs_name));
}

// A daemon that has started again may have other devices. Those that programs know stay.
void learn_devices(Link& link) {
    const RuntimeReport report = link.attachment->report();
    link.served.clear();
    for (const DeviceReport& one : report.devices) {
        const auto known = std::find_if(link.devices.begin(), link.devices.end(),
                                        [&](const auto& device) { return device->name == one.name; });
        Device* device = known != link.devices.end() ? known->get() : nullptr;
        if (device == nullptr) {
            auto made = std::make_unique<Device>();
            describe(*made, one, link.attachment->query_device(one.name), link.devices.size());
            made->link_layer = link.attachment->query_port(one.name).link_layer;
            device = made.get();
            link.devices.push_back(std::move(made));
        }
        link.served.push_back(device);
    }
}

Attachment& attached(Link& link) {
    if (link.attachment != nullptr && link.attachment->lost()) {
        // Objects of the old attachment still refer to it, so it is not destroyed.
        link.attachment = nullptr;
    }
    if (link.attachment == nullptr) {
        const std::string socket = setting("POLLCORE_SOCKET", kAttachPath);
        try {
            link.attachment = new Attachment({.path = socket, .own_memory = true});
            link.owner = ::getpid();
            learn_devices(link);
            // Also in a process that forks before it opens a device.
            [[maybe_unused]] static const int in_child = ::pthread_atfork(nullptr, nullptr, forget_daemon);
            // A program that ends with objects in place has not died, so the daemon's log should not say so.
            [[maybe_unused]] static const int registered = std::atexit(detach_at_exit);
        } catch (const Error& error) {
            tell_once("attach", fmt::format("{}: {}", error.what(), remedy(error.code().value(), socket)));
            throw;
        }
    }
    return *link.attachment;
}

}  // namespace

std::vector<Device*> served_devices() {
    Link& link = link_of_process();
    const std::lock_guard guard(link.mutex);
    try {
        (void)attached(link);
        return link.served;
    } catch (const Error&) {
        return {};  // told
    }
}

Device* served_device(const ibv_device* device) noexcept {
    Link& link = link_of_process();
    const std::lock_guard guard(link.mutex);
    const auto found =
        std::find_if(link.devices.begin(), link.devices.end(), [&](const auto& one) { return &one->verbs == device; });
    return found == link.devices.end() ? nullptr : found->get();
}

Attachment& daemon() {
    Link& link = link_of_process();
    const std::lock_guard guard(link.mutex);
    return attached(link);
}

bool is_served_file(const char* path) noexcept {
    constexpr std::string_view kFolder = "/dev/infiniband/";
    const std::string_view name = path;
    if (!name.starts_with(kFolder)) {
        return false;
    }
    Link& link = link_of_process();
    const std::lock_guard guard(link.mutex);
    return std::any_of(link.served.begin(), link.served.end(),
                       [&](const Device* one) { return name.substr(kFolder.size()) == one->verbs.dev_name; });
}

bool lists_beside() noexcept {
    static const bool beside = setting("POLLCORE_VERBS", "") == "beside";
    return beside;
}

const std::string& worker_wanted() {
    static const std::string& name = *new std::string(setting("POLLCORE_VERBS_WORKER", ""));
    return name;
}

}  // namespace pollcore::served
